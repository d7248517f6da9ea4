//! The cache of keys and values.

use super::config::Config;
use super::error::StateError;
use super::storage::{Place, Plain, Storage};
use crate::kernel::isa::Isa;
use crate::kernel::op::attend::{Head, Queries, attend};
use crate::kernel::op::element::{BLOCK, Element, F16, F32, Q4_0, Q8_0};
use crate::kernel::par::{Cols, Member, Shared};
use crate::simd;
use std::ops::Range;

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

/// Keys and values of all layers, `[layer][position][width]` each: positions that were never filled are never touched,
/// so they take no memory.
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
    fn new(c: &Config, cells: usize, place: &Place) -> Result<Self, StateError> {
        let k = Storage::new(cells * K::raw(c.k_dim()), "keys", place)?;
        Ok(Self { k, v: Storage::new(cells * V::raw(c.v_dim()), "values", place)? })
    }

    fn share(&mut self, c: &Config) -> SharedPair<'_, K, V> {
        let k = Shared::new(&mut self.k, K::raw(c.k_dim()));
        SharedPair { k, v: Shared::new(&mut self.v, V::raw(c.v_dim())) }
    }
}

impl Cache {
    /// A cache of zeros for `ctx` positions.
    pub fn new(ty: KvType, c: &Config, ctx: usize, place: &Place) -> Result<Self, StateError> {
        let cells = c.n_layers * ctx;
        Ok(match ty {
            KvType::F16 => Self::F16(Pair::new(c, cells, place)?),
            KvType::F32 => Self::F32(Pair::new(c, cells, place)?),
            KvType::Q8 => Self::Q8(Pair::new(c, cells, place)?),
            KvType::K8V4 => Self::K8V4(Pair::new(c, cells, place)?),
        })
    }

    /// Lends the cache to a team run.
    pub fn share(&mut self, c: &Config, ctx: usize) -> SharedCache<'_> {
        let store = match self {
            Self::F16(pair) => Store::F16(pair.share(c)),
            Self::F32(pair) => Store::F32(pair.share(c)),
            Self::Q8(pair) => Store::Q8(pair.share(c)),
            Self::K8V4(pair) => Store::K8V4(pair.share(c)),
        };
        SharedCache { store, ctx }
    }
}

/// A [`Cache`] lent to a team run.
pub struct SharedCache<'a> {
    store: Store<'a>,
    ctx: usize,
}

enum Store<'a> {
    F16(SharedPair<'a, F16, F16>),
    F32(SharedPair<'a, F32, F32>),
    Q8(SharedPair<'a, Q8_0, Q8_0>),
    K8V4(SharedPair<'a, Q8_0, Q4_0>),
}

struct SharedPair<'a, K: Element, V: Element> {
    k: Shared<'a, K::Raw>,
    v: Shared<'a, V::Raw>,
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
    /// Values are dealt to members in multiples of so many columns: whole blocks.
    pub const VALUES: usize = BLOCK;

    /// Stores rows of keys and of values, this member's columns: `k` dealt in heads of `head_dim`, `v` in
    /// [`Self::VALUES`].
    pub fn store(
        &self,
        m: &Member<'_>,
        isa: Isa,
        (layer, pos): (usize, usize),
        head_dim: usize,
        k: &mut Cols<'_, f32>,
        v: &mut Cols<'_, f32>,
    ) {
        let first = layer * self.ctx + pos;
        each!(&self.store, pair => pair.store(m, isa, first, head_dim, k, v));
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
        let start = span.layer * self.ctx;
        let (rows, v_len) = (start + span.first..start + span.end, out.range().len() / queries.heads);
        each!(&self.store, pair => {
            let (k, v) = pair.heads(m, rows, span.kv_head, queries.len, v_len);
            simd!(isa, s => attend(s, queries, k, v, scale, scores, out));
        });
    }
}

impl<K: Element, V: Element> SharedPair<'_, K, V> {
    fn store(
        &self,
        m: &Member<'_>,
        isa: Isa,
        first: usize,
        head_dim: usize,
        k: &mut Cols<'_, f32>,
        v: &mut Cols<'_, f32>,
    ) {
        put::<K>(isa, &mut self.k.cols(m, K::raw(head_dim)), first, k);
        put::<V>(isa, &mut self.v.cols(m, V::raw(SharedCache::VALUES)), first, v);
    }

    fn heads<'m>(
        &'m self,
        m: &'m Member<'_>,
        rows: Range<usize>,
        head: usize,
        k_len: usize,
        v_len: usize,
    ) -> (Head<'m, K>, Head<'m, V>) {
        (part(&self.k, m, rows.clone(), head, k_len), part(&self.v, m, rows, head, v_len))
    }
}

/// Stores rows of `from` at rows from `first` on. Both are the same columns.
fn put<E: Element>(isa: Isa, to: &mut Cols<'_, E::Raw>, first: usize, from: &mut Cols<'_, f32>) {
    debug_assert_eq!(E::raw(from.range().start)..E::raw(from.range().end), to.range());
    for t in 0..from.height() {
        simd!(isa, s => E::store(s, from.row(t), to.row(first + t)));
    }
}

/// One head of some rows.
fn part<'m, E: Element>(
    cache: &'m Shared<'_, E::Raw>,
    m: &'m Member<'_>,
    rows: Range<usize>,
    head: usize,
    len: usize,
) -> Head<'m, E> {
    let stride = cache.width();
    let data = &cache.read(m)[rows.start * stride..rows.end * stride];
    Head { data, stride, at: head * E::raw(len), len }
}
