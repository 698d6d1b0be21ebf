# SPDX-License-Identifier: Apache-2.0
"""One case, ready to run: by Mica through its C interface, by PyTorch, and once more in double as the judge."""

import ctypes
import inspect
import math
import os
import time

import torch
import torch.nn.functional as F

import mica_ctypes as mica
from mica._allocate import maker

TORCH_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
MICA_TYPES = {torch.float32: mica.FP32, torch.float16: mica.FP16, torch.bfloat16: mica.BF16, torch.bool: mica.BOOL,
              torch.int32: mica.INT32}
# A promise that PyTorch's allocators keep for whole tensors.
ALIGNMENT = 16


class Inputs:
    """Tensors of a case in PyTorch's axes (batch, heads, rows, dim); packed: (1, heads, rows of all, dim)."""

    def __init__(self, case, device, layout):
        self.case = case
        dtype, where = TORCH_TYPES[case["dtype"]], device.torch_device
        generator = torch.Generator(device=where).manual_seed(1)

        def normal(*shape, dtype=dtype):
            return torch.randn(*shape, generator=generator, device=where, dtype=torch.float32).to(dtype)

        def heads_rows(batch, heads, rows, dim):
            if layout == "bshd":
                return normal(batch, rows, heads, dim).transpose(1, 2)
            return normal(batch, heads, rows, dim)

        lengths, hq, hk = case["varlen"], case["heads_q"], case["heads_k"]
        self.batch = len(lengths) or case["batch"]
        slots = 1 if lengths else case["batch"]
        rows, keys = (sum(lengths), sum(lengths)) if lengths else (case["seqlen_q"], case["seqlen_k"])
        self.q = heads_rows(slots, hq, rows, case["dim"])
        self.k_cache = heads_rows(slots, hk, case["capacity"] or keys, case["dim"])
        self.v_cache = (self.k_cache[..., :case["dim_v"]] if case["latent"] else
                        heads_rows(slots, hk, case["capacity"] or keys, case["dim_v"]))
        self.k, self.v = self.k_cache[:, :, :keys], self.v_cache[:, :, :keys]
        self.d_o = heads_rows(slots, hq, rows, case["dim_v"])
        pairs = (max(lengths), max(lengths)) if lengths else (rows, keys)
        self.bias = normal(1, hq, *pairs) if case["bias"] else None
        self.mask = torch.rand(1, 1, *pairs, generator=generator, device=where) < 0.8 if case["mask"] else None
        self.alibi = torch.tensor([2 ** (-8 * (h + 1) / hq) for h in range(hq)], device=where) if case["alibi"] else None
        self.sinks = normal(hq, dtype=torch.float32) if case["sinks"] else None
        self.cu_seqlens = self.block_table = self.seqused_k = self.k_pages = self.v_pages = None
        if lengths:
            self.cu_seqlens = torch.tensor([0] + lengths, device=where).cumsum(0).to(torch.int32)
        if case["paged"]:
            self._make_pages(where, generator)
        if case["paged"] or case["capacity"]:
            self.seqused_k = torch.full((self.batch,), keys, device=where, dtype=torch.int32)

    def _make_pages(self, where, generator):
        """The same keys, cut into pages that lie in a shuffled order: (pages, page, heads, dim)."""
        size, keys = self.case["paged"], self.case["seqlen_k"]
        blocks = -(-keys // size)
        order = torch.randperm(self.batch * blocks, generator=generator, device=where)
        self.block_table = order.view(self.batch, blocks).to(torch.int32)

        def pages_of(tensor):
            rows = F.pad(tensor.transpose(1, 2), (0, 0, 0, 0, 0, blocks * size - keys))
            pages = rows.reshape(self.batch * blocks, size, *rows.shape[2:])
            shuffled = torch.empty_like(pages)
            shuffled[order] = pages
            return shuffled

        self.k_pages = pages_of(self.k)
        self.v_pages = self.k_pages[..., :self.case["dim_v"]] if self.case["latent"] else pages_of(self.v)

    def unit(self, tensor, batch, head, heads, of_queries):
        """The rows of one sequence and some heads of a tensor with the axes of q or k, as (heads, rows, dim)."""
        if self.cu_seqlens is None:
            return tensor[batch, head:head + heads]
        begin, end = self.cu_seqlens[batch].item(), self.cu_seqlens[batch + 1].item()
        return tensor[0, head:head + heads, begin:end]


def describe_tensor(tensor):
    """mica_tensor of a torch tensor with up to four axes."""
    t = mica.Tensor(dtype=MICA_TYPES[tensor.dtype], alignment=max(ALIGNMENT, 1))
    if tensor.data_ptr() % ALIGNMENT:
        t.alignment = 0
    for axis in range(4):
        there = axis < tensor.dim()
        t.shape[axis] = tensor.shape[axis] if there else 1
        t.stride[axis] = tensor.stride(axis) if there else 0
    return t


def rows_first(tensor):
    """(batch, heads, rows, dim) as Mica names the axes: (batch, rows, heads, dim)."""
    return tensor.transpose(1, 2)


class MicaContender:
    def __init__(self, inputs, device, library):
        case = inputs.case
        if case["append"] or case["rotary"]:
            raise ValueError("append and rotary are timed by `mica bench`")
        self._inputs, self._device = inputs, device
        a = mica.Attention()
        a.device.backend, a.device.ordinal = device.backend, device.torch_device.index or 0
        x = self._bindings = mica.Bindings()
        self._library, self._call = library, (library.c.mica_execute, ctypes.addressof(x))
        self._on_cpu, self._inside = device.torch_device.type == "cpu", [0.0]

        def bind(description, name, tensor):
            if tensor is not None:
                owner, field = description
                setattr(owner, field, describe_tensor(tensor))
                setattr(x, name, tensor.data_ptr())

        paged = inputs.k_pages is not None
        bind((a, "q"), "q", rows_first(inputs.q))
        bind((a, "k"), "k", inputs.k_pages if paged else rows_first(inputs.k_cache))
        bind((a, "v"), "v", inputs.v_pages if paged else rows_first(inputs.v_cache))
        bind((a.mask, "boolean"), "boolean_mask", inputs.mask)
        bind((a.score, "bias"), "bias", inputs.bias)
        bind((a.score, "alibi"), "alibi", None if inputs.alibi is None else inputs.alibi[None])
        bind((a.score, "sinks"), "sinks", inputs.sinks)
        bind((a.sequences, "block_table"), "block_table", inputs.block_table)
        if inputs.seqused_k is not None:
            a.sequences.vectors |= mica.SEQUSED_K
            x.seqused_k = inputs.seqused_k.data_ptr()
        if inputs.cu_seqlens is not None:
            a.sequences.vectors |= mica.CU_SEQLENS_Q | mica.CU_SEQLENS_K
            a.sequences.batch = inputs.batch
            a.sequences.max_seqlen_q = a.sequences.max_seqlen_k = max(case["varlen"])
            x.cu_seqlens_q = x.cu_seqlens_k = inputs.cu_seqlens.data_ptr()
        a.mask.causal = mica.CAUSAL[case["causal"]]
        if case["window"]:
            a.mask.window_left, a.mask.window_right = case["window"]
        a.attention_chunk = case["chunk"]
        if (case["window"] or case["chunk"] or case["alibi"]) and case["causal"] == "none":
            a.mask.diagonal = mica.DIAGONAL_BOTTOM_RIGHT
        a.score.scale, a.score.softcap = case["scale"], case["softcap"]
        a.dropout.probability, x.dropout_seed = case["dropout"], 42
        a.control.num_splits, a.control.deterministic = case["splits"], case["deterministic"]
        a.control.batch_invariant = case["batch_invariant"]

        self._o, self._lse = torch.empty_like(inputs.d_o), torch.empty(inputs.q.shape[:3], dtype=torch.float32,
                                                                       device=inputs.q.device)
        a.o, x.o = describe_tensor(rows_first(self._o)), self._o.data_ptr()
        self._wants_lse = case.is_backward or device.torch_device.type != "cpu"  # mica.attention alone asks for none
        if self._wants_lse:
            a.lse, x.lse = describe_tensor(self._lse), self._lse.data_ptr()
        begin = time.perf_counter()
        self._forward = library.plan(a, mica.FORWARD)
        self.plan_seconds = time.perf_counter() - begin
        self.plan = self._forward
        if case.is_backward:
            g = a.gradients
            bind((g, "d_o"), "d_o", rows_first(inputs.d_o))
            g.dq, g.dk, g.dv = a.q, a.k, a.v
            if inputs.bias is not None:
                g.d_bias = a.score.bias
            if inputs.sinks is not None:
                g.d_sinks = a.score.sinks
            a.control.num_splits = 0
            begin = time.perf_counter()
            self.plan = library.plan(a, mica.BACKWARD)
            self.plan_seconds = time.perf_counter() - begin
        size = max(self._forward.workspace_bytes, self.plan.workspace_bytes, 1)
        self._workspace = torch.empty(size + 256, dtype=torch.uint8, device=device.torch_device)
        x.workspace = -(-self._workspace.data_ptr() // 256) * 256
        x.workspace_bytes = size
        self._make_o, self._make_lse = (maker(tuple(t.shape), t.stride(), t.dtype, t.device) for t in (self._o, self._lse))
        if case.is_backward:
            self._executor(self._forward)()  # once: backward reads what it left

    @property
    def seconds_inside(self):
        """The library's own part of the last call, on a CPU."""
        return self._inside[0]

    def _executor(self, plan):
        """A function that executes the plan: as little of Python as can be, since all of it is timed."""
        x, (execute, bindings), address, inside = self._bindings, self._call, plan.address, self._inside
        on_cpu, stream, clock = self._on_cpu, self._device.stream, time.perf_counter

        def call():
            if not on_cpu:
                x.stream = stream()  # another one while a graph is captured
            begin = clock()
            status = execute(address, bindings)
            inside[0] = clock() - begin
            if status:
                raise self._library.failure(status)
        return call

    def _forward_run(self):
        """Outputs are new tensors, as PyTorch's are, made as the package makes them."""
        x, make_o, make_lse, execute = self._bindings, self._make_o, self._make_lse, self._executor(self._forward)

        def run():
            o = make_o()
            x.o = o.data_ptr()
            execute()
            return o

        def run_with_lse():
            lse = make_lse()
            x.lse = lse.data_ptr()
            return run()
        return run_with_lse if self._wants_lse else run

    def _backward_run(self):
        i, x, execute = self._inputs, self._bindings, self._executor(self.plan)
        names, like = ["dq", "dk", "dv"], [i.q, i.k, i.v]
        for name, tensor in (("d_bias", i.bias), ("d_sinks", i.sinks)):
            if tensor is not None:
                names.append(name)
                like.append(tensor)
        empty_like, rest = torch.empty_like, list(zip(names, like))[3:]
        make_dq, make_dk, make_dv = (maker(tuple(t.shape), empty_like(t).stride(), t.dtype, t.device) for t in like[:3])

        def run():
            dq, dk, dv = make_dq(), make_dk(), make_dv()
            x.dq, x.dk, x.dv = dq.data_ptr(), dk.data_ptr(), dv.data_ptr()
            execute()
            return dq, dk, dv

        def run_with_more():
            more = []
            for name, tensor in rest:
                more.append(empty_like(tensor))
                setattr(x, name, more[-1].data_ptr())
            return *run(), *more
        return run_with_more if rest else run

    @property
    def run(self):
        return self._backward_run() if self._inputs.case.is_backward else self._forward_run()

    def compute_nothing(self):
        """From now on run() is all of a call but what the library does: new outputs, and a C function that returns at
        once."""
        nothing = ctypes.CDLL(None).labs
        nothing.argtypes, nothing.restype = self._call[0].argtypes, None
        self._call = nothing, self._call[1]


class TorchContender:
    """scaled_dot_product_attention in one of its backends. Raises for what that backend does not do."""

    def __init__(self, inputs, device, peer):
        case = inputs.case
        beyond = [word for word in ("softcap", "alibi", "sinks", "window", "chunk", "varlen", "paged", "append", "rotary",
                                    "deterministic", "batch_invariant") if case[word]]
        if beyond:
            raise ValueError(f"PyTorch has no {beyond[0]}")
        is_cut = case["causal"] != "none" and case["seqlen_q"] != case["seqlen_k"]
        if is_cut and case["causal"] == "top-left":
            raise ValueError("PyTorch's mask for other lengths is aligned to the bottom right")
        if inputs.mask is not None and inputs.bias is not None:
            raise ValueError("PyTorch takes a mask or a bias, not both")
        self._inputs, self._context = inputs, lambda: device.peer(peer)
        mask = inputs.mask if inputs.mask is not None else inputs.bias
        if is_cut:
            from torch.nn.attention.bias import causal_lower_right
            mask = causal_lower_right(case["seqlen_q"], case["seqlen_k"])
        self._options = dict(attn_mask=mask, is_causal=case["causal"] != "none" and not is_cut, dropout_p=case["dropout"],
                             scale=case["scale"] or None, enable_gqa=case["heads_q"] != case["heads_k"])
        if case.is_backward:
            self._leaves = [t.detach().requires_grad_() for t in (inputs.q, inputs.k, inputs.v)]
            if inputs.bias is not None:
                self._options["attn_mask"] = inputs.bias.detach().requires_grad_()
                self._leaves.append(self._options["attn_mask"])
            with self._context():
                self._o = F.scaled_dot_product_attention(*self._leaves[:3], **self._options)

    @property
    def run(self):
        """As little of Python as can be, since all of it is timed: q, k and v want no gradient, so that forward needs no
        torch.no_grad; of the CPU's peers there is one, so that it needs no context."""
        i, options, context = self._inputs, self._options, self._context
        q, k, v, sdpa = i.q, i.k, i.v, F.scaled_dot_product_attention

        def forward():
            return sdpa(q, k, v, **options)

        def forward_of_a_peer():
            with context():
                return sdpa(q, k, v, **options)

        def backward():
            """Backward alone, over the graph that the forward left."""
            return torch.autograd.grad(self._o, self._leaves, i.d_o, retain_graph=True)
        if i.case.is_backward:
            return backward
        return forward if q.device.type == "cpu" else forward_of_a_peer


class PackedContender:
    """torch.nn.attention.varlen: packed sequences, or a dense batch as sequences of one length."""

    def __init__(self, inputs, device, layout):
        from torch.nn.attention.varlen import varlen_attn
        case = inputs.case
        beyond = [word for word in ("chunk", "softcap", "alibi", "sinks", "bias", "mask", "dropout", "paged", "append", "rotary",
                                    "deterministic", "batch_invariant") if case[word]]
        if beyond or case["dim"] != case["dim_v"]:
            raise ValueError(f"varlen_attn has no {beyond[0] if beyond else 'other dimension for v'}")
        if inputs.cu_seqlens is None and layout != "bshd":
            raise ValueError("varlen_attn wants rows first")
        self._inputs, self._varlen_attn = inputs, varlen_attn
        self._leaves = [self._packed(t).detach().requires_grad_(case.is_backward) for t in (inputs.q, inputs.k, inputs.v)]
        left, right = case["window"] or (-1, -1)
        self._options = dict(window_size=(left, 0 if case["causal"] != "none" else right), scale=case["scale"] or None)
        if "enable_gqa" in inspect.signature(varlen_attn).parameters:  # older ones take grouped heads without being asked
            self._options["enable_gqa"] = case["heads_q"] != case["heads_k"]
        if inputs.cu_seqlens is not None:
            longest = max(case["varlen"])
            self._sequences = (inputs.cu_seqlens, inputs.cu_seqlens, longest, longest)
        else:
            def starts(length):
                return torch.arange(case["batch"] + 1, device=device.torch_device, dtype=torch.int32) * length
            self._sequences = (starts(case["seqlen_q"]), starts(case["seqlen_k"]), case["seqlen_q"], case["seqlen_k"])
        self._o = self._call() if case.is_backward else None

    @staticmethod
    def _packed(tensor):
        """(slots, heads, rows, dim) as (rows of all, heads, dim), without a copy."""
        return tensor.transpose(1, 2).flatten(0, 1)

    @staticmethod
    def _unpacked(packed, like):
        return packed.unflatten(0, (like.shape[0], like.shape[2])).transpose(1, 2)

    def _call(self):
        return self._varlen_attn(*self._leaves, *self._sequences, **self._options)

    def run(self):
        i = self._inputs
        if i.case.is_backward:
            gradients = torch.autograd.grad(self._o, self._leaves, self._packed(i.d_o), retain_graph=True)
            return tuple(self._unpacked(g, t) for g, t in zip(gradients, (i.q, i.k, i.v)))
        with torch.no_grad():
            return self._unpacked(self._call(), i.q)


# Of a call that a server would make by flash_attn_with_kvcache.
MOST_ROWS_ON_A_CACHE = 64


class FlashAttention3Contender:
    """FlashAttention-3's own package, where the caller has built it and put it on PYTHONPATH. A build that has not all head
    dimensions would serve the others by wider kernels, which is no fair peer: FLASH_ATTENTION_3_DIMS names those that it
    serves as a whole build would (as in 80,96,192/128), FLASH_ATTENTION_3_LACKS the options that were left out (a call with
    one of them ends the process)."""

    def __init__(self, inputs, device, peer):
        import flash_attn_interface
        case = inputs.case
        if not hasattr(flash_attn_interface, "__file__") or "mica" in (flash_attn_interface.__doc__ or "").lower():
            raise ValueError("flash_attn_interface is Mica's drop-in here")
        dims = os.environ.get("FLASH_ATTENTION_3_DIMS")
        dim = str(case["dim"]) if case["dim"] == case["dim_v"] else f"{case['dim']}/{case['dim_v']}"
        if dims and dim not in dims.split(","):
            raise ValueError(f"this build of FlashAttention-3 has kernels for {dims}")
        lacks = os.environ.get("FLASH_ATTENTION_3_LACKS", "").split(",")
        beyond = [word for word in (*filter(None, lacks), "alibi", "sinks", "bias", "mask", "dropout", "paged", "append", "rotary",
                                    "batch_invariant") if case[word]]
        if beyond or case["causal"] == "top-left":
            raise ValueError(f"FlashAttention-3 has no {beyond[0] if beyond else 'mask aligned to the top left'}")
        self._inputs = inputs
        left, right = case["window"] or (-1, -1)
        options = dict(softmax_scale=case["scale"] or None, causal=case["causal"] != "none", window_size=(left, right),
                       softcap=case["softcap"], deterministic=case["deterministic"])
        leaves = [rows_first(t).detach() for t in (inputs.q, inputs.k, inputs.v)]
        if inputs.cu_seqlens is not None:
            leaves = [t[0] for t in leaves]
            longest = max(case["varlen"])
            self._call = lambda: flash_attn_interface.flash_attn_varlen_func(
                *self._leaves, inputs.cu_seqlens, inputs.cu_seqlens, longest, longest, **options)
        elif not case.is_backward and case["seqlen_q"] <= MOST_ROWS_ON_A_CACHE < case["seqlen_k"]:
            del options["deterministic"]  # its call for a cache chooses splits itself, flash_attn_func never splits
            self._call = lambda: flash_attn_interface.flash_attn_with_kvcache(*self._leaves, **options)
        else:
            self._call = lambda: flash_attn_interface.flash_attn_func(*self._leaves, **options)
        self._leaves = [t.requires_grad_(case.is_backward) for t in leaves]
        self._o = self._output() if case.is_backward else None

    def _output(self):
        result = self._call()
        return result[0] if isinstance(result, tuple) else result

    def _axes(self, tensor):
        return (tensor[None] if self._inputs.cu_seqlens is not None else tensor).transpose(1, 2)

    def run(self):
        i = self._inputs
        if i.case.is_backward:
            d_o = rows_first(i.d_o)
            d_o = d_o[0] if i.cu_seqlens is not None else d_o
            return tuple(self._axes(g) for g in torch.autograd.grad(self._o, self._leaves, d_o, retain_graph=True))
        with torch.no_grad():
            return self._axes(self._output())


def torch_contender(inputs, device, peer, layout):
    """By the peer's name: one of scaled_dot_product_attention's backends, VARLEN, or FLASH_ATTENTION_3."""
    if peer == "VARLEN":
        return PackedContender(inputs, device, layout)
    return (FlashAttention3Contender if peer == "FLASH_ATTENTION_3" else TorchContender)(inputs, device, peer)


# Above so many scores of a unit, forward is checked at some of its rows: in double all of them would not fit.
MOST_SCORES, SAMPLED_ROWS = 1 << 30, 509


def rows_to_check(inputs, batch, head_k):
    """The queries of a unit at which forward is checked: all, or some that are spread over them and the last."""
    group = inputs.case["heads_q"] // inputs.case["heads_k"]
    rows = inputs.unit(inputs.q, batch, head_k * group, 1, True).shape[1]
    keys = inputs.unit(inputs.k, batch, head_k, 1, False).shape[1]
    every = torch.arange(rows, device=inputs.q.device)
    if inputs.case.is_backward or group * rows * keys <= MOST_SCORES:
        return every
    return every[torch.linspace(0, rows - 1, SAMPLED_ROWS, device=every.device).long()]


def exact_unit(inputs, batch, head_k, chosen):
    """One key head with its query heads in double, from the formula: {"o": at the chosen rows} or
    {"dq": ..., "dk": ..., "dv": ...}."""
    case = inputs.case
    group = case["heads_q"] // case["heads_k"]
    head = head_k * group

    def double(tensor, first, heads, of_queries):
        return inputs.unit(tensor, batch, first, heads, of_queries).detach().double()

    q, k, v = double(inputs.q, head, group, True), double(inputs.k, head_k, 1, False), double(inputs.v, head_k, 1, False)
    if case.is_backward:
        for leaf in (q, k, v):
            leaf.requires_grad_()
    rows, keys = q.shape[1], k.shape[1]
    if chosen.numel() < rows:
        q = q[:, chosen]
    score = q @ k.transpose(1, 2) * (case["scale"] or 1 / math.sqrt(case["dim"]))
    if case["softcap"]:
        score = case["softcap"] * torch.tanh(score / case["softcap"])
    shift = 0 if case["causal"] == "top-left" else keys - rows
    distance = (chosen[:, None] + shift) - torch.arange(keys, device=q.device)[None]
    if inputs.alibi is not None:
        score = score - inputs.alibi[head:head + group, None, None].double() * distance.abs()
    if inputs.bias is not None:
        score = score + inputs.bias[0, head:head + group, chosen, :keys].double()
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if case["causal"] != "none":
        hidden |= distance < 0
    if case["window"]:
        left, right = case["window"]
        hidden |= (distance > left) if left >= 0 else False
        hidden |= (distance < -right) if right >= 0 else False
    if case["chunk"]:
        position = chosen[:, None] + shift
        hidden |= position // case["chunk"] != (position - distance) // case["chunk"]
    if inputs.mask is not None:
        hidden |= ~inputs.mask[0, 0, chosen, :keys]
    score = score.masked_fill(hidden, -math.inf)
    if inputs.sinks is not None:
        sink = inputs.sinks[head:head + group, None, None].double().expand(group, chosen.numel(), 1)
        probability = torch.softmax(torch.cat([score, sink], -1), -1)[..., :-1]
    else:
        probability = torch.softmax(score, -1)
    o = probability @ v
    if not case.is_backward:
        return {"o": o}
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), double(inputs.d_o, head, group, True))
    return {"dq": dq, "dk": dk, "dv": dv}


# Floors of the tolerance, relative to the largest value: about one unit in the last place of the 16-bit types.
FLOORS = {"fp32": 2.0**-18, "fp16": 2.0**-10, "bf16": 2.0**-7}


def check(inputs, result, peer_results):
    """"" if Mica's result is within twice the error of the closest peer plus a floor, else what is wrong; without a peer
    within two floors, since P and dS are rounded on the way. Returns that and {tensor: error}."""
    case = inputs.case
    result = result if isinstance(result, tuple) else (result,)
    peer_results = [r if isinstance(r, tuple) else (r,) for r in peer_results]
    names = ("dq", "dk", "dv") if case.is_backward else ("o",)
    if case["dropout"]:  # other random bits than the peers'; mica check compares them with the reference's
        return ("" if all(torch.isfinite(r).all() for r in result) else "not finite"), {}
    group = case["heads_q"] // case["heads_k"]
    units = [(inputs.batch - 1, case["heads_k"] - 1)]
    if case["seqlen_q"] * case["seqlen_k"] <= 1 << 22:
        units.append((0, 0))
    errors, bounds = {}, {}
    floor = FLOORS[case["dtype"]] * (1 if peer_results else 2)
    for batch, head_k in units:
        chosen = rows_to_check(inputs, batch, head_k)
        exact = exact_unit(inputs, batch, head_k, chosen)
        for n, name in enumerate(names):
            of_queries = name in ("o", "dq")

            def error(tensor):
                first, heads = (head_k * group, group) if of_queries else (head_k, 1)
                unit = inputs.unit(tensor, batch, first, heads, of_queries)
                difference = (unit[:, chosen] if name == "o" else unit).double() - exact[name]
                return difference.abs().max().item() if torch.isfinite(difference).all() else math.inf

            peer_error = max([error(r[n]) for r in peer_results] or [0.0])
            bound = 2 * peer_error + floor * exact[name].abs().max().item() + 1e-6
            errors[name] = max(errors.get(name, 0.0), error(result[n]))
            bounds[name] = max(bounds.get(name, 0.0), bound)
            if not errors[name] <= bounds[name]:
                return f"{name} is off by {errors[name]:.2g}, want at most {bounds[name]:.2g}", errors
    return "", errors
