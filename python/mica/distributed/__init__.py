# SPDX-License-Identifier: Apache-2.0
"""Attention over the ranks of a torch.distributed group: sequences longer than one device holds.

attention and attention_varlen take what a rank has of a sequence and give what they would give on one device: partial
results are joined exactly by their LSE, in fp32, and dropout's bits depend on the place in the whole alone.
"""

from ._mail import Lost
from .decode import attention_with_cache
from .functions import attention, attention_varlen
from .sharding import positions, shard, unshard

__all__ = ["attention", "attention_varlen", "attention_with_cache", "positions", "shard", "unshard", "Lost"]
