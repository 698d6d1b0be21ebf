# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays and other DLPack producers, without PyTorch."""

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

import mica  # noqa: E402


def formula(q, k, v, causal=False):
    group = q.shape[2] // k.shape[2]
    k, v = (numpy.repeat(t, group, 2).astype("d") for t in (k, v))
    score = numpy.einsum("bihd,bjhd->bhij", q.astype("d"), k) / q.shape[-1]**0.5
    if causal:
        i, j = numpy.ogrid[:q.shape[1], :k.shape[1]]
        score = numpy.where(j <= i + k.shape[1] - q.shape[1], score, -numpy.inf)
    lse = numpy.log(numpy.exp(score).sum(-1))
    return numpy.einsum("bhij,bjhd->bihd", numpy.exp(score - lse[..., None]), v), lse


@pytest.fixture
def qkv():
    generator = numpy.random.default_rng(0)
    return tuple(generator.standard_normal(shape, dtype="f")
                 for shape in ((2, 5, 4, 32), (2, 7, 2, 32), (2, 7, 2, 16)))


def test_dense(qkv):
    o, lse = mica.attention(*qkv, causal=True, return_lse=True)
    assert isinstance(o, numpy.ndarray) and o.dtype == numpy.float32 and lse.shape == (2, 4, 5)
    o_want, lse_want = formula(*qkv, causal=True)
    numpy.testing.assert_allclose(o, o_want, atol=1e-5)
    numpy.testing.assert_allclose(lse, lse_want, atol=1e-5)
    half = mica.attention(*(t.astype(numpy.float16) for t in qkv))
    assert half.dtype == numpy.float16
    numpy.testing.assert_allclose(half, formula(*qkv)[0], atol=5e-3)


def test_strides_and_out(qkv):
    q, k, v = qkv
    want = mica.attention(q, k, v)
    sparse = numpy.stack([q, q], -1)[..., 0]
    numpy.testing.assert_array_equal(mica.attention(sparse, k[:, ::-1], v[:, ::-1]).round(4), want.round(4))
    out = numpy.zeros_like(want)
    assert mica.attention(q, k, v, out=out) is out
    numpy.testing.assert_array_equal(out, want)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        mica.attention(q, k, v, out=out)
    with pytest.raises(ValueError, match="strides is .* bytes, want multiples of 4"):
        odd = numpy.zeros(q.nbytes + q.shape[0] * 2, "B")
        mica.attention(numpy.ndarray(q.shape, "f", odd, strides=(q.strides[0] + 2, *q.strides[1:])), k, v)


def test_dropout_is_numpys(qkv):
    numpy.random.seed(1)
    first, second = mica.attention(*qkv, dropout=0.5), mica.attention(*qkv, dropout=0.5)
    numpy.random.seed(1)
    numpy.testing.assert_array_equal(first, mica.attention(*qkv, dropout=0.5))
    assert (first != second).any()
    numpy.testing.assert_array_equal(mica.attention(*qkv, dropout=0.5, seed=4),
                                     mica.attention(*qkv, dropout=0.5, seed=(4, 0)))


def test_varlen(qkv):
    q, k, v = qkv
    cu_q, cu_k = numpy.array([0, 5, 10], "i"), numpy.array([0, 7, 14], "i")
    packed = mica.attention_varlen(*(t.reshape(-1, *t.shape[2:]) for t in (q, k, v)), cu_q, cu_k, causal=True)
    numpy.testing.assert_allclose(packed.reshape(2, 5, 4, 16), formula(q, k, v, causal=True)[0], atol=1e-5)
    with pytest.raises(ValueError, match="cu_seqlens_q.dtype is float32, want int32"):
        mica.attention_varlen(*(t.reshape(-1, *t.shape[2:]) for t in (q, k, v)), cu_q.astype("f"), cu_k)
    with pytest.raises(ValueError, match=r"cu_seqlens_k\[2\] is 15, want"):
        mica.attention_varlen(*(t.reshape(-1, *t.shape[2:]) for t in (q, k, v)), cu_q, numpy.array([0, 7, 15], "i"))


@pytest.mark.parametrize("axes", [3, 4])
def test_rows_of_no_sequence(qkv, axes):
    """They are empty in arrays that the caller gave, too."""
    q, k, v = (t.reshape(1, -1, *t.shape[2:])[0 if axes == 3 else slice(None)] for t in qkv)
    want, lse_want = mica.attention_varlen(q, k, v, [2, 7], [0, 14], return_lse=True)
    outside = [0, 1, 7, 8, 9]
    assert (want[..., outside, :, :] == 0).all() and (lse_want[..., outside] == -numpy.inf).all()
    for of in (lambda t: t, Producer):
        out, lse = numpy.full_like(want, 7), numpy.full((*lse_want.shape, 2), 7, "f")[..., 0]
        mica.attention_varlen(q, k, v, [2, 7], [0, 14], out=of(out), return_lse=of(lse))
        numpy.testing.assert_array_equal(out, want)
        numpy.testing.assert_array_equal(lse, lse_want)
    half, narrow = numpy.full((*want.shape[:-2], 9, 16), 7, numpy.float16)[..., 1:5, :], [t.astype(numpy.float16) for t in (q, k, v)]
    mica.attention_varlen(*narrow, [2, 7], [0, 14], out=half)
    assert (half.base[..., [0, 5, 6, 7, 8], :] == 7).all() and (half[..., outside, :, :] == 0).all() and (half != 7).all()


def test_cache(qkv):
    q, k, v = qkv
    k_cache, v_cache = numpy.zeros((2, 16, 2, 32), "f"), numpy.zeros((2, 16, 2, 16), "f")
    for step in range(7):
        o = mica.attention_with_cache(q[:, :1], k_cache, v_cache, k=k[:, step:step + 1], v=v[:, step:step + 1],
                                      cache_seqlens=step, causal=True)
    numpy.testing.assert_array_equal(k_cache[:, :7], k)
    numpy.testing.assert_allclose(o, formula(q[:, :1], k, v)[0], atol=1e-5)
    k_cache.flags.writeable = False
    with pytest.raises(ValueError, match="k_cache is read-only"):
        mica.attention_with_cache(q[:, :1], k_cache, v_cache, k=k[:, :1], v=v[:, :1], cache_seqlens=0)


@pytest.mark.parametrize("length", [numpy.int64(4), numpy.int32(4), numpy.array(4), True + 3], ids=repr)
def test_one_length_for_all(qkv, length):
    q, k, v = qkv
    want = mica.attention_with_cache(q, k, v, cache_seqlens=[4, 4])
    numpy.testing.assert_array_equal(mica.attention_with_cache(q, k, v, cache_seqlens=length), want)


class Producer:
    """Nothing but DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_dlpack(qkv):
    want, lse_want = mica.attention(*qkv, return_lse=True)
    out, lse = numpy.zeros_like(want), numpy.zeros_like(lse_want)
    result = mica.attention(*(Producer(t) for t in qkv), out=out, return_lse=lse)
    assert result[0] is out and result[1] is lse
    numpy.testing.assert_array_equal(out, want)
    numpy.testing.assert_array_equal(lse, lse_want)
    strided = Producer(qkv[0].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3))
    mica.attention(strided, *(Producer(t) for t in qkv[1:]), out=out)
    numpy.testing.assert_array_equal(out, want)
    with pytest.raises(ValueError, match="out is None, want an array to write to"):
        mica.attention(*(Producer(t) for t in qkv))


def test_masked_arrays_are_refused(qkv):
    """A copy that makes the last axis dense would lose the mask."""
    q, k, v = qkv
    for make in (lambda t: t, lambda t: numpy.stack([t, t], -1)[..., 0]):
        hidden = numpy.ma.masked_array(make(q), mask=make(q) > 0)
        with pytest.raises(ValueError, match="q is a masked array"):
            mica.attention(hidden, k, v)
        with pytest.raises(ValueError, match="v is a masked array"):
            mica.attention(q, k, numpy.ma.masked_array(make(v), mask=make(v) > 0))
        with pytest.raises(ValueError, match="k is a masked array"):
            mica.attention_with_cache(q, k, v, k=numpy.ma.masked_array(make(k), mask=make(k) > 0)[:, :1], v=v[:, :1], cache_seqlens=0)


def test_what_is_no_array(qkv):
    with pytest.raises(TypeError, match="k is a list, want a NumPy array, a torch tensor or anything with __dlpack__"):
        mica.attention(qkv[0], [1], qkv[2])
    with pytest.raises(ValueError, match="q.dtype is float64, want float32"):
        mica.attention(*(t.astype("d") for t in qkv))
