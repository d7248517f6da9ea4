//! From final hidden vectors to logits, and the engine that ties model, state and threads together.

mod engine;
pub mod split;
pub mod verify;

pub use engine::{Engine, EngineError, EngineOptions};

use crate::kernel::format::ActBlock;
use crate::kernel::isa::{Isa, Simd};
use crate::kernel::op::exp::tanh;
use crate::kernel::op::finite::all_finite;
use crate::kernel::op::map::map;
use crate::kernel::op::matmul::{Input, ROW_UNIT, Scratch, matmul};
use crate::kernel::op::quantize::{Q8, SUM, quantize};
use crate::kernel::par::{Shared, Team};
use crate::model::{EvalError, Model};
use crate::simd;
use std::sync::atomic::{AtomicBool, Ordering};

/// The output head's own memory: a few hidden vectors in int8 and each thread's scratch.
pub struct Head {
    isa: Isa,
    exact: bool,
    form: Option<ActBlock>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i16>,
    scratch: Vec<Scratch>,
}

impl Head {
    /// Most hidden vectors that are turned into logits at once.
    pub const BATCH: usize = 8;

    /// Memory for the head of `model`.
    pub fn new(model: &Model<'_>, isa: Isa, exact: bool, threads: usize) -> Self {
        let form = if exact { None } else { model.weights.output.w.format().act() };
        let n = if form.is_some() { model.config.dim * Self::BATCH } else { 0 };
        Self {
            isa,
            exact,
            form,
            codes: vec![0; n],
            scales: vec![0.0; n / form.map_or(1, ActBlock::elements)],
            sums: vec![0; n / SUM],
            scratch: (0..threads).map(|_| Scratch::default()).collect(),
        }
    }

    /// Bytes of a head's memory.
    pub fn bytes(model: &Model<'_>, exact: bool, threads: usize) -> usize {
        let n = model.config.dim;
        let form = |b: ActBlock| {
            Self::BATCH * (n + n / b.elements() * size_of::<f32>() + n / SUM * size_of::<i16>())
        };
        let forms = if exact { None } else { model.weights.output.w.format().act() };
        forms.map_or(0, form) + threads * Scratch::floats(n, exact) * size_of::<f32>()
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
        let (c, output) = (&model.config, &model.weights.output);
        let tokens = hidden.len() / c.dim;
        let non_finite = |place| EvalError::NonFinite { position, layer: None, place };
        if !self.quantize(hidden) {
            return Err(non_finite("the final hidden vector"));
        }
        let q8 = self.form.map(|block| {
            let (n, blocks) = (tokens * c.dim, tokens * c.dim / block.elements());
            Q8 {
                block,
                n: c.dim,
                codes: &self.codes[..n],
                scales: &self.scales[..blocks],
                sums: &self.sums[..n / SUM],
            }
        });
        let form = |block| q8.filter(|q| q.block == block);
        let input = Input { f32: hidden, n: c.dim, b32: form(ActBlock::B32), b256: form(ActBlock::B256) };
        let (isa, exact) = (self.isa, self.exact);
        let out = Shared::new(logits, c.vocab);
        let scratch = Shared::new(&mut self.scratch, 1);
        let finite = AtomicBool::new(true);
        team.run(|m| {
            let mut scratch = scratch.rows(m);
            let mut out = out.cols(m, ROW_UNIT);
            let rows = out.range();
            for scratch in scratch.data() {
                matmul(isa, exact, output.w, &input, &mut out, scratch);
            }
            for t in 0..tokens {
                output.finish(isa, out.row(t), rows.clone());
                if let Some(cap) = c.final_softcap {
                    simd!(isa, s => softcap(s, out.row(t), cap));
                }
                if !simd!(isa, s => all_finite(s, out.row(t))) {
                    finite.store(false, Ordering::Relaxed);
                }
            }
        });
        if finite.into_inner() { Ok(()) } else { Err(non_finite("a logit")) }
    }

    /// Brings hidden vectors into the form that the head's weights need. False if a number is not finite.
    fn quantize(&mut self, hidden: &[f32]) -> bool {
        match self.form {
            None => simd!(self.isa, s => all_finite(s, hidden)),
            Some(block) => {
                let (c, d, n) = (&mut self.codes, &mut self.scales, &mut self.sums);
                simd!(self.isa, s => quantize(s, block, hidden, c, d, n))
            }
        }
    }
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
