# SPDX-License-Identifier: Apache-2.0
import torch  # noqa: F401  (its libraries first)

from hungry_extension._C import abi, greet, has_cuda  # noqa: F401
