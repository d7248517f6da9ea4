//! A model that runs: tokens in, logits out.

use super::Head;
use super::dual::{Dual, DualOptions, Notify, Unusable};
use crate::kernel::isa::Isa;
use crate::kernel::par::{Team, TeamError};
use crate::model::{
    self, Config, EvalError, KvType, Model, Outline, Place, Plan, State, StateError, StateOptions,
};

/// How a model is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Tokens that fit, prompt and answer together.
    pub ctx: usize,
    /// How keys and values are kept.
    pub kv: KvType,
    /// Multiply in f32 instead of int8.
    pub exact: bool,
    /// Threads.
    pub threads: usize,
    /// Most tokens computed at once. Changes no bit of a logit.
    pub batch: usize,
    /// The instruction set. Changes no bit of a logit.
    pub isa: Isa,
}

impl EngineOptions {
    /// The context if none is asked for: what the model was trained with, at most this.
    pub const CTX: usize = 4096;

    /// The defaults for `model` on `threads` threads.
    pub fn new(model: &Model<'_>, threads: usize) -> Self {
        Self::of(&model.config, threads)
    }

    /// The defaults for models of this shape on `threads` threads.
    pub fn of(config: &Config, threads: usize) -> Self {
        Self {
            ctx: config.train_ctx.min(Self::CTX),
            kv: KvType::default(),
            exact: false,
            threads,
            batch: StateOptions::BATCH,
            isa: Isa::detect(),
        }
    }

    fn state(&self) -> StateOptions {
        let Self { ctx, kv, batch, threads, exact, .. } = *self;
        StateOptions { ctx, kv, batch: batch.clamp(1, ctx.max(1)), threads, exact }
    }
}

/// Why an engine cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No memory.
    #[error(transparent)]
    State(#[from] StateError),
    /// No threads.
    #[error(transparent)]
    Team(#[from] TeamError),
}

/// A model, the state of one sequence, and the threads that compute it.
pub struct Engine<'f> {
    model: Model<'f>,
    state: State,
    team: Team,
    head: Head,
    dual: Option<Dual>,
    isa: Isa,
    /// `[vocab]`
    logits: Vec<f32>,
}

impl<'f> Engine<'f> {
    /// How much memory [`Engine::new`] takes for a model of this outline; known before any is taken.
    pub fn plan(outline: &Outline, options: &EngineOptions) -> Result<Plan, StateError> {
        let plan = State::plan(outline, &options.state())?;
        let logits = outline.config.vocab * size_of::<f32>();
        let head = Head::bytes(outline, options.exact, options.threads) + logits;
        Ok(Plan { buffer_bytes: plan.buffer_bytes + head, ..plan })
    }

    /// Takes memory and starts threads.
    pub fn new(model: Model<'f>, options: &EngineOptions) -> Result<Self, EngineError> {
        Self::with_kv_in(model, options, &Place::Memory)
    }

    /// As [`Engine::new`], with the KV cache in a place of choice.
    pub fn with_kv_in(model: Model<'f>, options: &EngineOptions, kv: &Place) -> Result<Self, EngineError> {
        let team = Team::new(options.threads)?;
        let state = State::new(&model, options.state(), kv)?;
        let head = Head::new(&model, options.isa, options.exact, options.threads);
        let logits = vec![0.0; model.config.vocab];
        Ok(Self { model, state, team, head, dual: None, isa: options.isa, logits })
    }

    /// Lets a device compute part of the head from now on. Changes no bit of a logit. `notify` is told what becomes of it.
    pub fn use_gpu(&mut self, options: DualOptions, notify: Notify) -> Result<(), Unusable> {
        let exact = self.state.options().exact;
        self.dual = Some(Dual::start(&self.model, options, exact, self.team.size(), notify)?);
        Ok(())
    }

    /// The device's part, if there was to be one.
    pub fn dual(&self) -> Option<&Dual> {
        self.dual.as_ref()
    }

    /// The times of up to `n` jobs that compute nothing, see [`Dual::round_trips`].
    pub fn gpu_round_trips(&mut self, n: usize) -> Vec<std::time::Duration> {
        self.dual.as_mut().map_or_else(Vec::new, |dual| dual.round_trips(n, &self.model))
    }

    /// The model.
    pub fn model(&self) -> &Model<'f> {
        &self.model
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.team.size()
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The most tokens computed at once.
    pub fn batch(&self) -> usize {
        self.state.options().batch
    }

    /// Tokens that fit.
    pub fn ctx(&self) -> usize {
        self.state.options().ctx
    }

    /// Tokens evaluated so far.
    pub fn position(&self) -> usize {
        self.state.position()
    }

    /// Forgets all tokens from `position` on.
    pub fn truncate(&mut self, position: usize) {
        self.state.truncate(position);
    }

    /// Appends tokens. Long runs are cut into batches; the error of one leaves those before it in place.
    pub fn eval(&mut self, ids: &[u32]) -> Result<(), EvalError> {
        let (position, ctx) = (self.position(), self.ctx());
        if ids.len() > ctx - position {
            return Err(EvalError::ContextFull { asked: ids.len(), position, ctx });
        }
        for batch in ids.chunks(self.batch()) {
            model::forward(&self.model, &mut self.state, &self.team, self.isa, batch)?;
        }
        Ok(())
    }

    /// Computes the logits after the last token, `[vocab]`. The caller may change them.
    pub fn logits(&mut self) -> Result<&mut [f32], EvalError> {
        let hidden = self.state.hidden();
        let last = hidden.len().checked_sub(self.model.config.dim).ok_or(EvalError::NoToken)?;
        let position = self.state.position() - 1;
        let (hidden, logits) = (&hidden[last..], &mut self.logits[..]);
        match &mut self.dual {
            Some(dual) => dual.logits(&mut self.head, &self.model, &self.team, position, hidden, logits)?,
            None => self.head.logits(&self.model, &self.team, position, hidden, logits)?,
        }
        self.model.after_head(None);
        Ok(&mut self.logits)
    }

    /// The logits that were computed last, and the token of the largest of them, the lowest of equal ones: threads find it
    /// while they compute.
    pub fn computed(&mut self) -> (&mut [f32], u32) {
        (&mut self.logits, self.head.largest() as u32)
    }

    /// Appends tokens and calls `each` with the position of every one and the logits after it.
    pub fn eval_each(&mut self, ids: &[u32], mut each: impl FnMut(usize, &[f32])) -> Result<(), EvalError> {
        let (dim, vocab) = (self.model.config.dim, self.model.config.vocab);
        let mut logits = vec![0.0; vocab * Head::BATCH.min(ids.len())];
        for batch in ids.chunks(self.batch()) {
            let mut position = self.position();
            self.eval(batch)?;
            for hidden in self.state.hidden().chunks(dim * Head::BATCH) {
                let logits = &mut logits[..hidden.len() / dim * vocab];
                self.head.logits(&self.model, &self.team, position, hidden, logits)?;
                self.model.after_head(None);
                for logits in logits.chunks_exact(vocab) {
                    each(position, logits);
                    position += 1;
                }
            }
        }
        Ok(())
    }
}
