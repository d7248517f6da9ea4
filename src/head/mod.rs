//! From final hidden vectors to logits, and the engine that ties model, state and threads together.

pub mod dual;
mod engine;
mod patience;
pub mod split;
pub mod times;
pub mod verify;

pub use engine::{Engine, EngineError, EngineOptions};

use crate::kernel::format::ActBlock;
use crate::kernel::isa::{Isa, Simd};
use crate::kernel::op::exp::tanh;
use crate::kernel::op::finite::{all_finite, largest};
use crate::kernel::op::map::map;
use crate::kernel::op::matmul::{Input, Product, Scratch, matmul, panel_bytes, tile_rows};
use crate::kernel::op::quantize::{Q8, SUM, quantize};
use crate::kernel::par::{Cols, Shared, Team};
use crate::model::{EvalError, Model, Outline};
use crate::simd;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The output head's own memory: a few hidden vectors in int8 and each thread's scratch.
pub struct Head {
    isa: Isa,
    exact: bool,
    form: Option<ActBlock>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i16>,
    scratch: Vec<Scratch>,
    /// The logits of a part of the rows, where the head does not stay in memory.
    part: Vec<f32>,
    /// The [`rank`] of the largest logit of the rows that are finished.
    best: AtomicU64,
}

/// What a band of the head is computed from.
#[derive(Clone, Copy)]
pub struct Operands<'a, 'f> {
    /// Whose head.
    pub model: &'a Model<'f>,
    /// The threads.
    pub team: &'a Team,
    /// Hidden vectors that were [prepared](Head::prepare), `[tokens][dim]`.
    pub hidden: &'a [f32],
}

impl Head {
    /// Most hidden vectors that are turned into logits at once.
    pub const BATCH: usize = 8;

    /// Memory for the head of `model`.
    pub fn new(model: &Model<'_>, isa: Isa, exact: bool, threads: usize) -> Self {
        let form = if exact { None } else { model.outline.head };
        let n = if form.is_some() { model.config.dim * Self::BATCH } else { 0 };
        Self {
            isa,
            exact,
            form,
            codes: vec![0; n],
            scales: vec![0.0; n / form.map_or(1, ActBlock::elements)],
            sums: vec![0; n / SUM],
            scratch: (0..threads).map(|_| Scratch::default()).collect(),
            part: Vec::new(),
            best: AtomicU64::new(0),
        }
    }

    /// Bytes of the memory of a head for a model of this outline.
    pub fn bytes(outline: &Outline, exact: bool, threads: usize) -> usize {
        let n = outline.config.dim;
        let form = |b: ActBlock| {
            Self::BATCH * (n + n / b.elements() * size_of::<f32>() + n / SUM * size_of::<i16>())
        };
        let forms = if exact { None } else { outline.head };
        let panel = forms.map_or(0, |_| panel_bytes(n, Self::BATCH));
        forms.map_or(0, form) + threads * (Scratch::bytes(n, exact) + panel)
    }

    /// The logits of up to [`Head::BATCH`] hidden vectors: `hidden` is `[tokens][dim]`, `logits` `[tokens][vocab]`.
    /// `position` is that of the first, for messages.
    pub fn logits(
        &mut self,
        model: &Model<'_>,
        team: &Team,
        position: usize,
        hidden: &[f32],
        logits: &mut [f32],
    ) -> Result<(), EvalError> {
        self.prepare(position, hidden)?;
        if self.band(Operands { model, team, hidden }, 0..model.config.vocab, logits) {
            Ok(())
        } else {
            Err(non_finite(position, "a logit"))
        }
    }

    /// Brings hidden vectors into the form that the head's weights need.
    pub fn prepare(&mut self, position: usize, hidden: &[f32]) -> Result<(), EvalError> {
        *self.best.get_mut() = 0;
        let finite = match self.form {
            None => simd!(self.isa, s => all_finite(s, hidden)),
            Some(block) => {
                let (c, d, n) = (&mut self.codes, &mut self.scales, &mut self.sums);
                simd!(self.isa, s => quantize(s, block, hidden, c, d, n))
            }
        };
        if finite { Ok(()) } else { Err(non_finite(position, "the final hidden vector")) }
    }

    /// What the weights are multiplied by, of vectors that were [prepared](Head::prepare).
    pub fn input<'a>(&'a self, hidden: &'a [f32], dim: usize) -> Input<'a> {
        let tokens = hidden.len() / dim;
        let q8 = self.form.map(|block| {
            let (n, blocks) = (tokens * dim, tokens * dim / block.elements());
            Q8::new(block, dim, &self.codes[..n], &self.scales[..blocks], &self.sums[..n / SUM])
        });
        let form = |block| q8.filter(|q| q.block == block);
        Input { f32: hidden, n: dim, b32: form(ActBlock::B32), b256: form(ActBlock::B256) }
    }

    /// The logits of some rows; `out` is `[tokens][rows]`. False if one is not finite.
    pub fn band(&mut self, of: Operands<'_, '_>, rows: Range<usize>, out: &mut [f32]) -> bool {
        self.compute(of, rows, out, true)
    }

    /// As [`Head::band`], but the products alone, before anything is added to them.
    pub fn raw_band(&mut self, of: Operands<'_, '_>, rows: Range<usize>, out: &mut [f32]) {
        self.compute(of, rows, out, false);
    }

    /// All rows at once, or in parts where the head does not stay in memory.
    fn compute(&mut self, of: Operands<'_, '_>, rows: Range<usize>, out: &mut [f32], finish: bool) -> bool {
        let Some(step) = of.model.head_step().filter(|&step| step < rows.len()) else {
            return self.rows(of, rows, out, finish);
        };
        let part = |start: usize| start..(start + step).min(rows.end);
        let (width, mut finite, mut some) = (rows.len(), true, std::mem::take(&mut self.part));
        for start in rows.clone().step_by(step) {
            some.resize(part(start).len() * (out.len() / width), 0.0);
            finite &= self.rows(of, part(start), &mut some, finish);
            for (some, out) in some.chunks_exact(part(start).len()).zip(out.chunks_exact_mut(width)) {
                out[start - rows.start..][..some.len()].copy_from_slice(some);
            }
            of.model.after_head(Some(part(start)));
        }
        self.part = some;
        finite
    }

    fn rows(&mut self, of: Operands<'_, '_>, rows: Range<usize>, out: &mut [f32], finish: bool) -> bool {
        let Operands { model, team, hidden } = of;
        let w = model.weights.output.w.part(rows.clone());
        let mut scratch = std::mem::take(&mut self.scratch);
        let finite = AtomicBool::new(true);
        {
            let input = self.input(hidden, model.config.dim);
            let workers = Shared::new(&mut scratch, 1);
            let out = Shared::new(out, rows.len());
            team.run(|m| {
                let mut workers = workers.rows(m);
                let [scratch] = workers.data() else { return };
                let mut tiles = out.tiles(m, tile_rows(out.width(), out.height(), m.size()));
                Product::new(self.isa, self.exact, w, &input, None, scratch).all(&mut tiles, |out| {
                    let own = rows.start + out.range().start..rows.start + out.range().end;
                    for t in 0..if finish { out.height() } else { 0 } {
                        if !self.finish(model, own.clone(), out.row(t)) {
                            finite.store(false, Ordering::Relaxed);
                        }
                    }
                });
            });
        }
        self.scratch = scratch;
        finite.into_inner()
    }

    /// The products of some rows with one vector, before anything is added to them; on this thread.
    pub fn products(&mut self, of: Operands<'_, '_>, rows: Range<usize>, out: &mut [f32]) {
        let w = of.model.weights.output.w.part(rows.clone());
        let mut scratch = self.scratch.pop().unwrap_or_default();
        let input = self.input(of.hidden, of.model.config.dim);
        matmul(self.isa, self.exact, w, &input, &mut Cols::whole(out, rows.len()), &mut scratch);
        self.scratch.push(scratch);
    }

    /// Turns the products of some rows with one vector into logits. False if one is not finite.
    pub fn finish(&self, model: &Model<'_>, rows: Range<usize>, out: &mut [f32]) -> bool {
        model.weights.output.finish(self.isa, out, rows.clone());
        if let Some(cap) = model.config.final_softcap {
            simd!(self.isa, s => softcap(s, out, cap));
        }
        let Some(largest) = simd!(self.isa, s => largest(s, out)) else { return false };
        // While the rows are in this core's cache. Where there is a larger one already, nobody needs this one's place.
        if rank(largest, 0) > self.best.load(Ordering::Relaxed)
            && let Some(at) = out.iter().position(|&x| x == largest)
        {
            self.best.fetch_max(rank(largest, rows.start + at), Ordering::Relaxed);
        }
        true
    }

    /// The row of the largest logit of the one vector that was [prepared](Head::prepare) last, the lowest of equal ones, when
    /// all rows are finished.
    pub fn largest(&self) -> usize {
        !(self.best.load(Ordering::Relaxed) as u32) as usize
    }
}

/// Larger for a larger logit, and of equal ones (0 and -0 are) for a lower row.
fn rank(logit: f32, row: usize) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let ordered = if logit < 0.0 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!(row as u32))
}

fn non_finite(position: usize, place: &'static str) -> EvalError {
    EvalError::NonFinite { position, layer: None, place }
}

/// `x = cap * tanh(x / cap)`.
#[inline(always)]
fn softcap<S: Simd>(s: S, x: &mut [f32], cap: f32) {
    let cap = s.splat(cap);
    map(
        s,
        x,
        #[inline(always)]
        |x| s.mul(tanh(s, s.div(x, cap)), cap),
    );
}

/// The position of the largest logit, the lowest of equal ones.
pub fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, &x) in logits.iter().enumerate() {
        if x > logits[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_of_equal_logits_wins() {
        assert_eq!(argmax(&[1.0, 3.0, -2.0, 3.0]), 1);
        assert_eq!(argmax(&[-1.0]), 0);
    }

    #[test]
    fn ranks_are_ordered_like_logits_and_then_by_row() {
        let logits = [-f32::MAX, -2.5, -1e-40, 0.0, 1e-40, 1.0, 2.5, f32::MAX];
        for pair in logits.windows(2) {
            assert!(rank(pair[0], 0) < rank(pair[1], 300_000), "{pair:?}");
            assert!(rank(pair[0], 7) > rank(pair[0], 8), "{pair:?}");
        }
        assert_eq!(rank(-0.0, 3), rank(0.0, 3));
        assert!(rank(-f32::MAX, u32::MAX as usize - 1) > 0);
    }

    #[test]
    fn softcap_is_the_formula_and_agrees_between_instruction_sets() {
        let x: Vec<f32> = (0..1001).map(|i| (i as f32 - 500.0) * 0.37).collect();
        let run = |isa: Isa| {
            let mut y = x.clone();
            simd!(isa, s => softcap(s, &mut y, 30.0));
            y
        };
        for (y, &x) in run(Isa::Scalar).iter().zip(&x) {
            assert!((f64::from(*y) - 30.0 * libm::tanh(f64::from(x) / 30.0)).abs() < 1e-5);
        }
        for isa in Isa::all() {
            assert_eq!(run(isa), run(Isa::Scalar));
        }
    }
}
