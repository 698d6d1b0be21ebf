# SPDX-License-Identifier: Apache-2.0
"""Numbers and NumPy arrays: what cannot be meant is refused, by the caller's own names for it."""

import pytest

np = pytest.importorskip("numpy", reason="NumPy is not installed")

import mica  # noqa: E402

Q = np.random.default_rng(0).standard_normal((2, 6, 4, 8)).astype(np.float32)
K = np.random.default_rng(1).standard_normal((2, 9, 2, 8)).astype(np.float32)
PACKED = Q.reshape(12, 4, 8)


def torch_too(*arrays):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return tuple(torch.from_numpy(a.copy()) for a in arrays)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("options, match", [
    (dict(window=(2**64, 0)), r"window's left is 18446744073709551616, want"),
    (dict(window=(2**31, 0)), r"window's left is 2147483648, want"),
    (dict(chunk=-1), r"chunk is -1, want 0 \(no chunks\) to"),
    (dict(chunk=1.5), r"chunk is 1.5, want an int"),
    (dict(chunk=2**29 + 1), r"chunk is 536870913, want 0"),
    (dict(window="12"), r"window is '12', want \(left, right\)"),
    (dict(window=(1.5, 0)), r"window's left is 1.5, want an int"),
    (dict(window=[[1, 2], 3]), r"window's left is \[1, 2\], want an int"),
    (dict(num_splits=2**40), r"num_splits is 1099511627776, want 0 .* 256"),
    (dict(num_splits=1.5), r"num_splits is 1.5, want an int"),
    (dict(scale=1e-46), r"scale is 1e-46, want"),
    (dict(scale="x"), r"scale is 'x', want a number"),
    (dict(scale=float("nan")), r"scale is nan, want"),
    (dict(softcap=1e-46), r"softcap is 1e-46, want"),
    (dict(dropout=1.5), r"dropout is 1.5, want"),
    (dict(causal=[True]), r"causal is \[True\], want"),
    (dict(causal="bottom_right"), r"causal is 'bottom_right', want .*; did you mean 'bottom-right'\?"),
    (dict(diagonal="topleft", window=(1, 1)), r"diagonal is 'topleft', want .*; did you mean 'top-left'\?"),
    (dict(dropout=0.5, seed="7"), r"seed is a str, want"),
    (dict(dropout=0.5, seed=2**64), r"seed is 18446744073709551616, want an int of 64 bits"),
    (dict(dropout=0.5, seed=-2**63 - 1), r"seed is -9223372036854775809, want an int of 64 bits"),
    (dict(causal=True, diagonal="top-left"), r"diagonal is 'top-left' and causal is True, want diagonal=None"),
])
def test_numbers_that_cannot_be_meant(kind, options, match):
    q, k = (Q, K) if kind == "numpy" else torch_too(Q, K)
    with pytest.raises(ValueError, match=match):
        mica.attention(q, k, k, **options)


@pytest.mark.parametrize("seed", [(1.5, 2), np.array([1.5, 2.0]), (2**64, 0), (0, -2**63 - 1), np.float64(3), b"ab", {0: 1, 1: 2}, (1,),
                                  np.array([[1, 2], [3, 4]])])
def test_a_seed_is_not_rounded_or_cut(seed):
    with pytest.raises(ValueError, match="^seed is "):
        mica.attention(Q, K, K, dropout=0.5, seed=seed)


def test_numpys_own_true_and_false():
    o, lse = mica.attention(Q, K, K, return_lse=np.True_)
    assert lse.shape == (2, 4, 6)
    np.testing.assert_array_equal(mica.attention(Q, K, K, return_lse=np.False_), o)
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if hasattr(torch, "float8_e4m3fn"):
        from mica import fp8
        assert len(fp8.attention(*(t.to(torch.float8_e4m3fn) for t in torch_too(Q, K, K)), return_lse=np.True_)) == 2


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_numpy_numbers_are_numbers(kind):
    q, k = (Q, K) if kind == "numpy" else torch_too(Q, K)
    want = mica.attention(q, k, k, window=(3, 1), num_splits=2, scale=0.3)
    got = mica.attention(q, k, k, window=(np.int64(3), np.int32(1)), num_splits=np.int64(2), scale=np.float32(0.3))
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)
    mica.attention(q, k, k, dropout=0.5, seed=np.int64(3))


def test_threads():
    before = mica.get_num_threads()
    for wrong in (2**40, -1, 1.5, "2"):
        with pytest.raises(ValueError, match=f"num_threads is {wrong!r}, want"):
            mica.set_num_threads(wrong)
    assert mica.get_num_threads() == before


def test_big_endian_arrays_are_converted():
    want = mica.attention(Q, K, K)
    np.testing.assert_array_equal(mica.attention(Q.astype(">f4"), K.astype(">f4"), K.astype(">f4")), want)
    with pytest.raises(ValueError, match="out is big-endian"):
        mica.attention(Q, K, K, out=np.empty_like(Q).astype(">f4"))


def test_a_big_endian_cache_is_refused_where_it_is_written():
    """Its copy would be written, and the caller's stay what it was."""
    caches = [K.astype(">f4"), K.copy()]
    new = np.ones_like(K[:, :1])
    mica.attention_with_cache(Q[:, :1], *caches, cache_seqlens=3)
    for k_cache, v_cache, name in ((caches[0], caches[1], "k_cache"), (caches[1], caches[0], "v_cache")):
        with pytest.raises(ValueError, match=f"^{name} is big-endian, want"):
            mica.attention_with_cache(Q[:, :1], k_cache, v_cache, k=new, v=new, cache_seqlens=3)


def test_a_seed_of_two_numbers():
    first = mica.attention(Q, K, K, dropout=0.5, seed=np.array([3, 4]))
    np.testing.assert_array_equal(first, mica.attention(Q, K, K, dropout=0.5, seed=(3, 4)))
    assert (first != mica.attention(Q, K, K, dropout=0.5, seed=(3, 5))).any()


def test_big_endian_arrays_beside_tensors_are_converted():
    q, k, packed = torch_too(Q, K, PACKED)
    bias = np.linspace(-1, 1, 6 * 9, dtype=np.float32).reshape(6, 9)
    want = mica.attention(q, k, k, bias=torch_too(bias)[0])
    np.testing.assert_array_equal(mica.attention(q, k, K.astype(">f4"), bias=bias.astype(">f4")), want)
    want = mica.attention_varlen(packed, packed, packed, [0, 5, 12], [0, 5, 12])
    cu = np.array([0, 5, 12], ">i4")
    np.testing.assert_array_equal(mica.attention_varlen(packed, packed, packed, cu, cu), want)


def test_arrays_beside_tensors_may_run_backwards():
    q, k = torch_too(Q, K)
    bias = np.linspace(-1, 1, 6 * 9, dtype=np.float32).reshape(6, 9)
    want = mica.attention(q, k.flip(1), k, bias=torch_too(bias)[0].flip(0, 1))
    np.testing.assert_array_equal(mica.attention(q, K[:, ::-1], K, bias=bias[::-1, ::-1]), want)
    within = np.zeros(9, [("sink", "f4"), ("other", "u1")])["sink"][:q.shape[2]]  # of 5 bytes each
    want = mica.attention(q, k, k, sinks=torch_too(within.copy())[0])
    np.testing.assert_array_equal(mica.attention(q, k, k, sinks=within), want)
    caches, new = [K.copy()[:, ::-1], K.copy()], k[:, :1] + 1
    for which, k_cache, v_cache in (("k_cache", *caches), ("v_cache", *caches[::-1])):
        for _ in range(2):
            said = rf"^{which}.strides is \(.*\), want multiples of 4 bytes, none below 0"
            with pytest.raises(ValueError, match=said):
                mica.attention_with_cache(q[:, :1], k_cache, v_cache, k=new, v=new, cache_seqlens=3)
    np.testing.assert_array_equal(mica.attention_with_cache(q[:, :1], *caches, cache_seqlens=3),
                                  mica.attention_with_cache(q[:, :1], k.flip(1), k, cache_seqlens=3))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_a_mask_or_bias_that_is_too_short(kind, name):
    array = np.ones((1, 1, 4, 5), bool) if name == "mask" else np.zeros((1, 1, 4, 5), np.float32)
    packed, array, cu = (PACKED, array, np.array([0, 6, 12], np.int32)) if kind == "numpy" else torch_too(
        PACKED, array, np.array([0, 6, 12], np.int32))
    with pytest.raises(ValueError, match=rf"{name}.shape\[2\] is 4, want 1 or at least 6"):
        mica.attention_varlen(packed, packed, packed, cu, cu, **{name: array})
    q, cache, short = (Q[:, :1], K, array[:, :, :1]) if kind == "numpy" else (*torch_too(Q[:, :1], K), array[:, :, :1])
    with pytest.raises(ValueError, match=rf"{name}.shape\[3\] is 5, want 1 or at least 8"):
        mica.attention_with_cache(q, cache, cache, cache_seqlens=8, **{name: short})


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_lengths_may_be_lists_and_int64(kind):
    packed, q, k = (PACKED, Q, K) if kind == "numpy" else torch_too(PACKED, Q, K)
    cu = np.array([0, 5, 12], np.int32)
    as_kind = (lambda a: a) if kind == "numpy" else (lambda a: torch_too(a)[0])
    want = np.asarray(mica.attention_varlen(packed, packed, packed, as_kind(cu), as_kind(cu)))
    for other in ([0, 5, 12], (0, 5, 12), as_kind(cu.astype(np.int64)), cu.astype(np.int64)):
        np.testing.assert_array_equal(np.asarray(mica.attention_varlen(packed, packed, packed, other, other)), want)
    want = np.asarray(mica.attention_with_cache(q, k, k, cache_seqlens=as_kind(np.array([7, 9], np.int32))))
    for other in ([7, 9], as_kind(np.array([7, 9], np.int64))):
        np.testing.assert_array_equal(np.asarray(mica.attention_with_cache(q, k, k, cache_seqlens=other)), want)
    with pytest.raises(ValueError, match="cache_seqlens.* is 4294967296, want"):
        mica.attention_with_cache(q, k, k, cache_seqlens=[2**32, 1])


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_lengths_beyond_32_bits(kind):
    """They would become other, legal ones."""
    long = np.array([0, 5, 2**32 + 12])
    q, k = (PACKED, PACKED[:, :2]) if kind == "numpy" else torch_too(PACKED, PACKED[:, :2])
    with pytest.raises(ValueError, match=r"cu_seqlens_q\[2\] is \d+, want"):
        mica.attention_varlen(q, k, k, long if kind == "numpy" else torch_too(long)[0], [0, 5, 12])
    with pytest.raises(ValueError, match=r"cache_seqlens(\[0\])? is 4294967296, want an int of 32 bits"):
        mica.attention_with_cache(q[None], k[None], k[None], cache_seqlens=2**32)


def test_arguments_of_torch_tensors_that_are_none():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q, k = torch_too(Q, K)
    with pytest.raises(ValueError, match="alibi.dtype is torch.float64, want float32$"):
        mica.attention(q, k, k, alibi=torch.ones(4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"seed is torch.int32 of \(2,\), want an int or int64 of \(2,\)"):
        mica.attention(q, k, k, dropout=0.5, seed=torch.tensor([1, 2], dtype=torch.int32))
    for call in (lambda lse: mica.attention(q, k, k, return_lse=lse), lambda lse: mica.attention_with_cache(q, k, k, return_lse=lse),
                 lambda lse: mica.attention_varlen(q[0], k[0], k[0], [0, 6], [0, 9], return_lse=lse)):
        with pytest.raises(ValueError, match="return_lse is a Tensor, want True or False"):
            call(torch.empty(2, 4, 6))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_masked_array_is_refused(kind):
    """Its mask would be ignored."""
    q = Q if kind == "numpy" else torch_too(Q)[0]
    with pytest.raises(ValueError, match="k is a masked array, whose mask would be ignored"):
        mica.attention(q, np.ma.masked_array(K, mask=K > 1), K)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_messages_name_the_callers_arguments(kind):
    q, k, packed = (Q, K, PACKED) if kind == "numpy" else torch_too(Q, K, PACKED)
    for match, call in [
        (r"^cache_seqlens is None, want it with k", lambda: mica.attention_with_cache(q, k, k, k=k[:, :1], v=k[:, :1])),
        (r"^cache_seqlens\[0\] is 99, want 0 to 9", lambda: mica.attention_with_cache(q, k, k, cache_seqlens=99)),
        (r"^k_cache.shape\[3\] is 4, want 8", lambda: mica.attention_with_cache(q, k[..., :4], k)),
        (r"^v is None, want it together with k",
         lambda: mica.attention_with_cache(q, k, k, k=k[:, :1], cache_seqlens=1)),
        (r"^mask.shape\[1\] is 6, want", lambda: mica.attention(q, k, k, mask=q > 0)),
        (r"^bias.shape", lambda: mica.attention(q, k, k, bias=q[:, :, :3])),
        (r"^num_splits is 300, want", lambda: mica.attention(q, k, k, num_splits=300)),
        (r"^out.shape\[3\] is 4, want 8", lambda: mica.attention(q, k, k, out=q[..., :4])),
        (r"^mask has 5 axes, want at most 4", lambda: mica.attention(q, k, k, mask=(q > 0)[None])),
    ]:
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises((TypeError, ValueError), match="^k is a (list|NoneType|str), want"):
        mica.attention(q, [1.0, 2.0], k)
    with pytest.raises((TypeError, ValueError), match="^q is a list, want"):
        mica.attention([1.0], k, k)
    with pytest.raises(TypeError, match="^mask is a list, want"):
        mica.attention(q, k, k, mask=[True])
    for name, call in [("k", lambda: mica.attention(q, None, k)), ("v", lambda: mica.attention(q, k, None)),
                       ("v", lambda: mica.attention_varlen(packed, packed, None, [0, 12], [0, 12])),
                       ("v_cache", lambda: mica.attention_with_cache(q, k, None))]:
        with pytest.raises(TypeError, match=f"^{name} is (a )?None(Type)?, want"):
            call()
    with pytest.raises((TypeError, ValueError), match="^cache_seqlens is (5.5|a float), want (an int|integers)"):
        mica.attention_with_cache(q, k, k, cache_seqlens=5.5)


class ReadOnly:
    """An array of a library whose arrays are never written, as JAX's are."""

    def __init__(self, array):
        self.array = array
        array.flags.writeable = False

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.skipif(tuple(map(int, np.__version__.split(".")[:2])) < (2, 1), reason="this NumPy has no DLPack flags")
def test_a_read_only_array_of_another_library_is_no_out():
    mica.attention(ReadOnly(Q.copy()), ReadOnly(K.copy()), ReadOnly(K.copy()), out=np.empty_like(Q))
    with pytest.raises(ValueError, match="out is read-only"):
        mica.attention(Q, K, K, out=ReadOnly(np.empty_like(Q)))
