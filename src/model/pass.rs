//! The steps of the forward pass. Each is one operation on the members' own parts; barriers are between them, in
//! [`forward`](super::forward::forward).

use super::acts::{Deal, SharedActs};
use super::config::Activation;
use super::error::EvalError;
use super::kv::Span;
use super::state::Lent;
use super::weights::{Layer, Linear};
use super::{Config, Model};
use crate::kernel::isa::Isa;
use crate::kernel::op::activation::{geglu, swiglu};
use crate::kernel::op::attend::{QUERIES, Queries};
use crate::kernel::op::finite::all_finite;
use crate::kernel::op::map::{add, scale};
use crate::kernel::op::matmul::{Product, tile_rows};
use crate::kernel::op::rmsnorm::rms_norm;
use crate::kernel::op::rope::rotate;
use crate::kernel::par::{Member, Shared};
use crate::simd;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all steps of one batch share.
pub struct Pass<'a> {
    pub model: &'a Model<'a>,
    pub isa: Isa,
    pub exact: bool,
    /// Position of the first token.
    pub pos: usize,
    pub bufs: Lent<'a>,
    pub faults: Faults,
}

/// A matrix, whether its input is refined, and where the products go.
pub type Multiplied<'a, 'w> = (&'a Linear<'w>, bool, &'a Shared<'a, f32>);

/// Where a number may turn out not to be finite, in the order of the computation.
#[derive(Clone, Copy)]
pub enum Place {
    AttnInput,
    Attention,
    FfnInput,
    Ffn,
    Hidden,
}

impl Place {
    const NAMES: [&str; 5] = [
        "the input of attention",
        "attention",
        "the input of the feed-forward block",
        "the feed-forward block",
        "the final hidden vector",
    ];
}

/// The first number found that is not finite, by layer, place and token.
pub struct Faults(AtomicU64);

impl Faults {
    pub fn new() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    fn report(&self, layer: usize, place: Place, token: usize) {
        let code = (layer as u64) << 40 | (place as u64) << 36 | token as u64;
        self.0.fetch_min(code, Ordering::Relaxed);
    }

    /// The error, if there is one.
    pub fn result(&self, config: &Config, pos: usize) -> Result<(), EvalError> {
        let code = self.0.load(Ordering::Relaxed);
        if code == u64::MAX {
            return Ok(());
        }
        let layer = (code >> 40) as usize;
        Err(EvalError::NonFinite {
            position: pos + (code & ((1 << 36) - 1)) as usize,
            layer: (layer < config.n_layers).then_some(layer),
            place: Place::NAMES[(code >> 36 & 15) as usize],
        })
    }
}

impl Pass<'_> {
    fn config(&self) -> &Config {
        &self.model.config
    }

    /// Residual stream and rotation tables of this member's tokens.
    pub fn embed(&self, m: &Member<'_>, ids: &[u32]) {
        for (t, x) in self.bufs.x.rows(m).iter_mut() {
            self.model.weights.token_embd.decode_row(ids[t] as usize, x);
            let by = self.config().embed_scale;
            if by != 1.0 {
                simd!(self.isa, s => scale(s, x, by));
            }
        }
        for (t, table) in self.bufs.rope.rows(m).iter_mut() {
            self.model.rope.table(self.pos + t, table);
        }
        if let Some(rope) = &self.model.rope_local {
            for (t, table) in self.bufs.rope_local.rows(m).iter_mut() {
                rope.table(self.pos + t, table);
            }
        }
    }

    /// `to = norm(x)`
    fn norm(&self, x: &[f32], w: &[f32], to: &mut [f32]) {
        to.copy_from_slice(x);
        simd!(self.isa, s => rms_norm(s, to, w, self.config().norm_eps));
    }

    /// `x += norm(y)`, or `x += y` without a norm, for this member's tokens.
    pub fn add(&self, m: &Member<'_>, post_norm: Option<&[f32]>) {
        let (mut x, mut y) = (self.bufs.x.rows(m), self.bufs.y.rows(m));
        for ((_, x), (_, y)) in x.iter_mut().zip(y.iter_mut()) {
            if let Some(w) = post_norm {
                simd!(self.isa, s => rms_norm(s, y, w, self.config().norm_eps));
            }
            simd!(self.isa, s => add(s, x, y));
        }
    }

    /// The normalised residual stream of this member's tokens, as the input of products.
    pub fn norm_input(&self, m: &Member<'_>, w: &[f32], layer: usize, place: Place) {
        let refine = matches!(place, Place::AttnInput);
        let mut x = self.bufs.x.strip(m, 1);
        let first = x.first_row();
        let norm = |t: usize, _, to: &mut [f32]| self.norm(x.row(t - first), w, to);
        let bad = |t| self.faults.report(layer, place, t);
        self.bufs.xn.make(m, self.isa, (Deal::Tokens, refine), norm, bad);
    }

    /// What attention gathered, as the input of a product: this member's columns.
    pub fn attended(&self, m: &Member<'_>, layer: usize) {
        let bad = |t| self.faults.report(layer, Place::Attention, t);
        self.bufs.att.make(m, self.isa, (Deal::Columns, false), |_, _, _| (), bad);
    }

    /// `h = act(h) * up` as the input of a product: this member's columns.
    pub fn activate(&self, m: &Member<'_>, layer: usize) {
        let (up, n) = (self.bufs.up.read(m), self.bufs.up.width());
        let gate = |t: usize, columns: Range<usize>, h: &mut [f32]| {
            let up = &up[t * n..][columns];
            match self.config().activation {
                Activation::Silu => simd!(self.isa, s => swiglu(s, h, up)),
                Activation::Gelu => simd!(self.isa, s => geglu(s, h, up)),
            }
        };
        let bad = |t| self.faults.report(layer, Place::Ffn, t);
        self.bufs.h.make(m, self.isa, (Deal::Columns, true), gate, bad);
    }

    /// For each of some matrices `to = x W^T`, scaled and biased. With `refined` what int8 lost of the input is multiplied too, for
    /// products whose error goes straight into the residual stream: those of q and k only shift weights that are normalised
    /// again.
    pub fn linear(&self, m: &mut Member<'_>, x: &SharedActs<'_>, of: &[Multiplied<'_, '_>]) {
        let readers = of.iter().map(|(l, refined, _)| (l.w, *refined));
        let arranged = x.arrange(m, self.isa, self.exact, readers);
        if arranged.iter().any(Option::is_some) {
            m.sync();
        }
        assert!(of.len() <= arranged.len(), "{} matrices at once", of.len());
        for ((l, refined, to), reader) in of.iter().zip(&arranged) {
            let input = x.input(m, *refined);
            let panel = reader.as_ref().and_then(|reader| x.panel(m, reader));
            let mut workers = self.bufs.workers.rows(m);
            let [worker] = workers.data() else { return };
            let mut product = Product::new(self.isa, self.exact, l.w, &input, panel, &mut worker.scratch);
            let mut tiles = to.tiles(m, tile_rows(to.width(), to.height(), m.size()));
            product.all(&mut tiles, |out| {
                let rows = out.range();
                for t in 0..out.height() {
                    l.finish(self.isa, out.row(t), rows.clone());
                }
            });
        }
    }

    /// Norms and turns query and key heads; keys and values go into the cache.
    pub fn rotate(&self, m: &Member<'_>, layer: usize, w: &Layer<'_>) {
        let (c, b) = (self.config(), &self.bufs);
        let tables = if c.is_local(layer) { b.rope_local.read(m) } else { b.rope.read(m) };
        let turn = |head: &mut [f32], norm: &Option<Vec<f32>>, t: usize| {
            simd!(self.isa, s => {
                if let Some(w) = norm {
                    rms_norm(s, head, w, c.norm_eps);
                }
                rotate(c.rope_style, head, &tables[t * c.rope.n_rot..][..c.rope.n_rot]);
            });
        };
        let (mut q, mut k) = (b.q.cols(m, c.head_dim), b.k.cols(m, c.head_dim));
        for (heads, norm) in [(&mut q, &w.q_norm), (&mut k, &w.k_norm)] {
            for t in 0..heads.height() {
                for head in heads.row(t).chunks_exact_mut(c.head_dim) {
                    turn(head, norm, t);
                }
            }
        }
        let mut v = b.v.cols(m, c.value_dim);
        b.cache.store(m, self.isa, (layer, self.pos), (&mut k, c.head_dim), (&mut v, c.value_dim));
    }

    /// Attention, head by head; heads that share a key head are taken together where there are enough for everyone.
    pub fn attend(&self, m: &Member<'_>, layer: usize) {
        let (c, b) = (self.config(), &self.bufs);
        let group = c.group();
        // As many tokens as make whole passes over keys and values, where that leaves enough work for everyone.
        let enough = |tokens: usize| b.q.height().div_ceil(tokens) * c.n_kv_heads >= 4 * m.size();
        let (tokens, heads) = match Some(QUERIES >> group.trailing_zeros().min(3)).filter(|&n| enough(n)) {
            Some(tokens) => (tokens, group),
            None if enough(1) || m.size() == 1 => (1, group),
            None => (1, 1),
        };
        let q = b.q.read(m);
        let mut workers = b.workers.rows(m);
        let mut bands = b.att.f32.bands(m, tokens, heads * c.value_dim);
        let [worker] = workers.data() else { return };
        while let Some((mut out, _)) = bands.advance() {
            let (t, count) = (out.first_row(), out.height());
            let (pos, first_head) = (self.pos + t, out.range().start / c.value_dim);
            let first = c.first_seen(layer, pos);
            let mut seen = [const { 0..0 }; QUERIES];
            for (seen, pos) in seen.iter_mut().zip(pos..pos + count) {
                *seen = c.first_seen(layer, pos) - first..pos + 1 - first;
            }
            let span = Span { layer, first, end: pos + count, kv_head: first_head / group };
            let queries = Queries {
                data: &q[t * c.q_dim() + first_head * c.head_dim..],
                stride: c.q_dim(),
                heads,
                len: c.head_dim,
                seen: &seen[..count],
            };
            b.cache.attend(m, self.isa, &span, &queries, c.attn_scale, &mut worker.scores, &mut out);
        }
    }

    /// The final norm of this member's tokens.
    pub fn finish(&self, m: &Member<'_>) {
        let (mut x, mut hidden) = (self.bufs.x.rows(m), self.bufs.hidden.rows(m));
        for ((_, x), (t, to)) in x.iter_mut().zip(hidden.iter_mut()) {
            self.norm(x, &self.model.weights.output_norm, to);
            if !simd!(self.isa, s => all_finite(s, to)) {
                self.faults.report(self.config().n_layers, Place::Hidden, t);
            }
        }
    }
}
