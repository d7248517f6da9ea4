//! The cache of keys and values.

use crate::kernel::isa::Isa;
use crate::kernel::op::attend::{Head, attend};
use crate::kernel::op::element::{Element, store};
use crate::kernel::par::{Cols, Member, Shared};
use crate::model::error::StateError;
use crate::model::storage::{Place, Storage};
use crate::simd;

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// Rounded to f16.
    #[default]
    F16,
    /// As they are.
    F32,
}

impl KvType {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Keys or values of all layers, `[layer][position][width]`: positions that were never filled are never touched, so
/// they take no memory.
pub enum Cache {
    /// f16 bits.
    F16(Storage<u16>),
    /// f32.
    F32(Storage<f32>),
}

impl Cache {
    /// A cache of zeros.
    pub fn new(ty: KvType, elements: usize, what: &'static str, place: &Place) -> Result<Self, StateError> {
        Ok(match ty {
            KvType::F16 => Self::F16(Storage::new(elements, what, place)?),
            KvType::F32 => Self::F32(Storage::new(elements, what, place)?),
        })
    }

    /// Lends the cache to a team run.
    pub fn share(&mut self, width: usize, ctx: usize) -> SharedCache<'_> {
        let store = match self {
            Self::F16(v) => SharedStore::F16(Shared::new(v, width)),
            Self::F32(v) => SharedStore::F32(Shared::new(v, width)),
        };
        SharedCache { store, ctx }
    }
}

/// A [`Cache`] lent to a team run.
pub struct SharedCache<'a> {
    store: SharedStore<'a>,
    ctx: usize,
}

enum SharedStore<'a> {
    F16(Shared<'a, u16>),
    F32(Shared<'a, f32>),
}

/// Which heads attend to what.
pub struct Span {
    /// The layer.
    pub layer: usize,
    /// The first position that is seen.
    pub first: usize,
    /// One past the last.
    pub end: usize,
    /// The key and value head.
    pub kv_head: usize,
    /// What scores are multiplied by.
    pub scale: f32,
}

impl SharedCache<'_> {
    /// Stores rows of `from` (which hold this member's columns, dealt in units of `unit`) at positions from `pos` on.
    pub fn store(
        &self,
        m: &Member<'_>,
        isa: Isa,
        layer: usize,
        pos: usize,
        unit: usize,
        from: &mut Cols<'_, f32>,
    ) {
        match &self.store {
            SharedStore::F16(s) => put(isa, &mut s.cols(m, unit), layer * self.ctx + pos, from),
            SharedStore::F32(s) => put(isa, &mut s.cols(m, unit), layer * self.ctx + pos, from),
        }
    }

    /// Attention of the query heads `q` over keys in `self` and values in `values`; lengths of the heads follow from
    /// `q`, `out` and `heads`, the number of query heads in both.
    #[expect(clippy::too_many_arguments, reason = "the operands of attention are this many")]
    pub fn attend(
        &self,
        values: &Self,
        m: &Member<'_>,
        isa: Isa,
        span: &Span,
        heads: usize,
        q: &[f32],
        scores: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        let (k_len, v_len) = (q.len() / heads, out.len() / heads);
        match (&self.store, &values.store) {
            (SharedStore::F16(k), SharedStore::F16(v)) => {
                let (k, v) = (self.head(k, m, span, k_len), values.head(v, m, span, v_len));
                simd!(isa, s => attend(s, q, k, v, span.scale, scores, out));
            }
            (SharedStore::F32(k), SharedStore::F32(v)) => {
                let (k, v) = (self.head(k, m, span, k_len), values.head(v, m, span, v_len));
                simd!(isa, s => attend(s, q, k, v, span.scale, scores, out));
            }
            _ => unreachable!("keys and values are allocated with one type"),
        }
    }

    fn head<'m, E>(&self, s: &'m Shared<'_, E>, m: &'m Member<'_>, span: &Span, len: usize) -> Head<'m, E> {
        let (stride, start) = (s.width(), span.layer * self.ctx);
        let data = &s.read(m)[(start + span.first) * stride..(start + span.end) * stride];
        Head { data, stride, at: span.kv_head * len, len }
    }
}

fn put<E: Element>(isa: Isa, to: &mut Cols<'_, E>, first: usize, from: &mut Cols<'_, f32>) {
    for t in 0..from.height() {
        simd!(isa, s => store(s, from.row(t), to.row(first + t)));
    }
}
