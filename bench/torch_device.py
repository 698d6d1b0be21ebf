# SPDX-License-Identifier: Apache-2.0
"""The device that a script of this folder was asked to time on."""

import os
import sys


def torch_device(name):
    """torch.device of `cpu`, `cuda` or `cuda:N`, made the current one; ends the script with a sentence otherwise."""
    import torch
    device = torch.device(name)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    elif device.type != "cpu":
        raise SystemExit(f"{os.path.basename(sys.argv[0])}: --device is {name}, want cpu, cuda or cuda:N")
    return device
