//! The cache of keys and values.

use super::config::Config;
use super::error::StateError;
use super::storage::{Place, Plain, Storage};
use crate::kernel::isa::Isa;
use crate::kernel::op::attend::{Head, Queries, attend};
use crate::kernel::op::element::{BLOCK, Element, F16, F32, Q4_0, Q8_0};
use crate::kernel::par::{Cols, Member, Shared};
use crate::simd;

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// Rounded to f16.
    #[default]
    F16,
    /// As they are.
    F32,
    /// Both in blocks of Q8_0.
    Q8,
    /// Keys in blocks of Q8_0, values in blocks of Q4_0.
    K8V4,
}

impl KvType {
    /// Bytes of one position in one layer.
    pub fn bytes(self, c: &Config) -> usize {
        fn pair<K: Element, V: Element>(c: &Config) -> usize {
            K::raw(c.k_dim()) * size_of::<K::Raw>() + V::raw(c.v_dim()) * size_of::<V::Raw>()
        }
        match self {
            Self::F16 => pair::<F16, F16>(c),
            Self::F32 => pair::<F32, F32>(c),
            Self::Q8 => pair::<Q8_0, Q8_0>(c),
            Self::K8V4 => pair::<Q8_0, Q4_0>(c),
        }
    }

    /// Whether heads are whole blocks, where there are blocks: no scale belongs to two heads.
    pub fn check(self, c: &Config) -> Result<(), StateError> {
        let in_blocks = matches!(self, Self::Q8 | Self::K8V4);
        match [c.head_dim, c.value_dim].into_iter().find(|len| !len.is_multiple_of(BLOCK)) {
            Some(len) if in_blocks => Err(StateError::Heads { len, block: BLOCK }),
            _ => Ok(()),
        }
    }
}

/// Keys and values of all layers, `[layer][head][position][len]` each: attention reads a head from front to back, and
/// positions that were never filled are never touched, so they take no memory.
pub enum Cache {
    /// f16.
    F16(Pair<F16, F16>),
    /// f32.
    F32(Pair<F32, F32>),
    /// Q8_0.
    Q8(Pair<Q8_0, Q8_0>),
    /// Q8_0 and Q4_0.
    K8V4(Pair<Q8_0, Q4_0>),
}

/// Keys as `K`, values as `V`.
pub struct Pair<K: Element, V: Element> {
    k: Storage<K::Raw>,
    v: Storage<V::Raw>,
}

impl<K: Element<Raw: Plain>, V: Element<Raw: Plain>> Pair<K, V> {
    fn new(c: &Config, ctx: usize, place: &Place) -> Result<Self, StateError> {
        Ok(Self {
            k: storage::<K>(c, ctx, c.head_dim, "keys", place)?,
            v: storage::<V>(c, ctx, c.value_dim, "values", place)?,
        })
    }

    fn share(&mut self, c: &Config, ctx: usize) -> SharedPair<'_, K, V> {
        let width = |raw: usize| c.n_kv_heads * ctx * raw;
        let k = Shared::new(&mut self.k, width(K::raw(c.head_dim)));
        SharedPair { k, v: Shared::new(&mut self.v, width(V::raw(c.value_dim))), ctx }
    }
}

/// Room for all heads of `len` numbers.
fn storage<E: Element<Raw: Plain>>(
    c: &Config,
    ctx: usize,
    len: usize,
    what: &'static str,
    place: &Place,
) -> Result<Storage<E::Raw>, StateError> {
    let head = ctx.saturating_mul(E::raw(len));
    let all = head.saturating_mul(c.n_layers * c.n_kv_heads);
    if head >= Shared::<E::Raw>::UNITS {
        return Err(StateError::Memory { bytes: all.saturating_mul(size_of::<E::Raw>()), what });
    }
    Storage::new(all, what, place)
}

impl Cache {
    /// A cache of zeros for `ctx` positions.
    pub fn new(ty: KvType, c: &Config, ctx: usize, place: &Place) -> Result<Self, StateError> {
        Ok(match ty {
            KvType::F16 => Self::F16(Pair::new(c, ctx, place)?),
            KvType::F32 => Self::F32(Pair::new(c, ctx, place)?),
            KvType::Q8 => Self::Q8(Pair::new(c, ctx, place)?),
            KvType::K8V4 => Self::K8V4(Pair::new(c, ctx, place)?),
        })
    }

    /// Lends the cache to a team run.
    pub fn share(&mut self, c: &Config, ctx: usize) -> SharedCache<'_> {
        SharedCache(match self {
            Self::F16(pair) => Store::F16(pair.share(c, ctx)),
            Self::F32(pair) => Store::F32(pair.share(c, ctx)),
            Self::Q8(pair) => Store::Q8(pair.share(c, ctx)),
            Self::K8V4(pair) => Store::K8V4(pair.share(c, ctx)),
        })
    }
}

/// A [`Cache`] lent to a team run.
pub struct SharedCache<'a>(Store<'a>);

enum Store<'a> {
    F16(SharedPair<'a, F16, F16>),
    F32(SharedPair<'a, F32, F32>),
    Q8(SharedPair<'a, Q8_0, Q8_0>),
    K8V4(SharedPair<'a, Q8_0, Q4_0>),
}

/// A row of each buffer is a layer.
struct SharedPair<'a, K: Element, V: Element> {
    k: Shared<'a, K::Raw>,
    v: Shared<'a, V::Raw>,
    ctx: usize,
}

/// The same code for every kind of cache.
macro_rules! each {
    ($store:expr, $pair:ident => $body:expr) => {
        match $store {
            Store::F16($pair) => $body,
            Store::F32($pair) => $body,
            Store::Q8($pair) => $body,
            Store::K8V4($pair) => $body,
        }
    };
}

/// Which part of the cache is attended to.
pub struct Span {
    /// The layer.
    pub layer: usize,
    /// The first position.
    pub first: usize,
    /// One past the last.
    pub end: usize,
    /// The key and value head.
    pub kv_head: usize,
}

impl SharedCache<'_> {
    /// Stores keys and values of consecutive positions from `pos` on, this member's heads of `k_len` and `v_len` numbers.
    /// Both are dealt in heads.
    pub fn store(
        &self,
        m: &Member<'_>,
        isa: Isa,
        (layer, pos): (usize, usize),
        (k, k_len): (&mut Cols<'_, f32>, usize),
        (v, v_len): (&mut Cols<'_, f32>, usize),
    ) {
        each!(&self.0, pair => {
            let (mut keys, mut values) = pair.cols(m, k_len, v_len);
            put(&mut keys, isa, (layer, pos), k);
            put(&mut values, isa, (layer, pos), v);
        });
    }

    /// Attention of `queries`, whose positions count from `span.first`; the values' length follows from `out` and the
    /// number of heads.
    #[expect(clippy::too_many_arguments, reason = "the operands of attention are this many")]
    pub fn attend(
        &self,
        m: &Member<'_>,
        isa: Isa,
        span: &Span,
        queries: &Queries<'_>,
        scale: f32,
        scores: &mut Vec<f32>,
        out: &mut Cols<'_, f32>,
    ) {
        let v_len = out.range().len() / queries.heads;
        each!(&self.0, pair => {
            let (k, v) = pair.heads(m, span, queries.len, v_len);
            simd!(isa, s => attend(s, queries, k, v, scale, scores, out));
        });
    }
}

impl<K: Element, V: Element> SharedPair<'_, K, V> {
    fn cols<'m>(&'m self, m: &'m Member<'_>, k_len: usize, v_len: usize) -> (Heads<'m, K>, Heads<'m, V>) {
        let (k, v) = (self.k.cols(m, self.ctx * K::raw(k_len)), self.v.cols(m, self.ctx * V::raw(v_len)));
        (Heads { cols: k, ctx: self.ctx, len: k_len }, Heads { cols: v, ctx: self.ctx, len: v_len })
    }

    fn heads<'m>(
        &'m self,
        m: &'m Member<'_>,
        span: &Span,
        k_len: usize,
        v_len: usize,
    ) -> (Head<'m, K>, Head<'m, V>) {
        (part(&self.k, m, span, self.ctx, k_len), part(&self.v, m, span, self.ctx, v_len))
    }
}

/// A member's heads of a cache, of `len` numbers.
struct Heads<'m, E: Element> {
    cols: Cols<'m, E::Raw>,
    ctx: usize,
    len: usize,
}

/// Stores rows of the same heads at positions from `pos` on.
fn put<E: Element>(to: &mut Heads<'_, E>, isa: Isa, (layer, pos): (usize, usize), from: &mut Cols<'_, f32>) {
    let (ctx, len, raw) = (to.ctx, to.len, E::raw(to.len));
    let (heads, range) = (from.range(), to.cols.range());
    debug_assert_eq!(heads.start / len * ctx * raw..heads.end / len * ctx * raw, range);
    let heads = to.cols.row(layer);
    for t in 0..from.height() {
        let heads = heads.chunks_exact_mut(ctx * raw).zip(from.row(t).chunks_exact(len));
        simd!(isa, s => {
            for (head, x) in heads {
                E::store(s, x, &mut head[(pos + t) * raw..][..raw]);
            }
        });
    }
}

/// One head at some positions.
fn part<'m, E: Element>(
    cache: &'m Shared<'_, E::Raw>,
    m: &'m Member<'_>,
    span: &Span,
    ctx: usize,
    len: usize,
) -> Head<'m, E> {
    let stride = E::raw(len);
    let head = &cache.read(m)[span.layer * cache.width() + span.kv_head * ctx * stride..][..ctx * stride];
    Head { data: &head[span.first * stride..span.end * stride], stride, at: 0, len }
}
