//! What changes while a model runs: the KV cache, the position, and the buffers of a batch.

use super::acts::{Acts, READERS, SharedActs};
use super::error::StateError;
use super::kv::{Cache, KvType, SharedCache};
use super::outline::{Forms, Outline};
use super::storage::Place;
use super::{Config, Model};
use crate::kernel::op::attend::QUERIES;
use crate::kernel::op::matmul;
use crate::kernel::par::Shared;

/// Choices that decide how much memory a state takes. None of them changes a logit, `kv` and `exact` excepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateOptions {
    /// Tokens that fit.
    pub ctx: usize,
    /// How keys and values are kept.
    pub kv: KvType,
    /// Most tokens that are computed at once.
    pub batch: usize,
    /// Threads that will run.
    pub threads: usize,
    /// Multiply in f32: no int8 forms are needed.
    pub exact: bool,
}

impl StateOptions {
    /// The default batch: large enough that unpacking weights is paid for, small enough for the caches.
    pub const BATCH: usize = 128;
}

/// How much memory a state takes, known before any is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of the KV cache when the context is full; unused positions take none.
    pub kv_bytes: usize,
    /// Bytes of all buffers.
    pub buffer_bytes: usize,
}

/// The state of one sequence.
pub struct State {
    pub(super) options: StateOptions,
    pos: usize,
    cache: Cache,
    buffers: Buffers,
    /// The final hidden vectors of the last batch, `[batch][dim]`.
    hidden: Vec<f32>,
    n_hidden: usize,
}

/// Lengths of the buffers, a token each unless said otherwise.
struct Sizes {
    dim: usize,
    q: usize,
    k: usize,
    v: usize,
    att: usize,
    hidden: usize,
    n_rot: usize,
    ropes: usize,
    /// Scores of the queries that are computed together, for a full context, a thread.
    scores: usize,
    /// Longest matrix row, a thread.
    row: usize,
    forms: Forms,
}

impl Sizes {
    fn new(outline: &Outline, o: &StateOptions) -> Self {
        let config = &outline.config;
        let forms = if o.exact { Forms::default() } else { outline.forms };
        Self {
            dim: config.dim,
            q: config.q_dim(),
            k: config.k_dim(),
            v: config.v_dim(),
            att: config.att_dim(),
            hidden: config.hidden_dim,
            n_rot: config.rope.n_rot,
            ropes: 1 + usize::from(config.local.is_some()),
            scores: QUERIES * o.ctx,
            row: config.dim.max(config.hidden_dim).max(config.att_dim()),
            forms,
        }
    }

    /// Bytes of [`Buffers`] and the hidden vectors.
    fn bytes(&self, o: &StateOptions) -> usize {
        let token = 3 * self.dim + self.q + self.k + self.v + self.hidden + self.ropes * self.n_rot;
        let thread = self.scores * size_of::<f32>() + matmul::Scratch::bytes(self.row, o.exact);
        o.batch * token * size_of::<f32>()
            + Acts::bytes(self.dim, o.batch, self.forms.x, self.forms.x_refined, READERS)
            + Acts::bytes(self.att, o.batch, self.forms.att, [None, None], 1)
            + Acts::bytes(self.hidden, o.batch, self.forms.h, self.forms.h_refined, 1)
            + o.threads * thread
    }
}

/// The buffers of one batch, each `[batch][its length]`.
struct Buffers {
    x: Vec<f32>,
    xn: Acts,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    att: Acts,
    y: Vec<f32>,
    up: Vec<f32>,
    h: Acts,
    rope: Vec<f32>,
    rope_local: Vec<f32>,
    workers: Vec<Worker>,
}

/// One thread's own memory.
#[derive(Default)]
pub(super) struct Worker {
    pub scratch: matmul::Scratch,
    pub scores: Vec<f32>,
}

/// [`State`]'s memory lent to one team run: the first `tokens` of every buffer.
pub(super) struct Lent<'a> {
    /// The residual stream, `[tokens][dim]`
    pub x: Shared<'a, f32>,
    /// Normalised, the input of q, k, v and of gate, up.
    pub xn: SharedActs<'a>,
    /// `[tokens][q_dim]`
    pub q: Shared<'a, f32>,
    /// `[tokens][k_dim]`
    pub k: Shared<'a, f32>,
    /// `[tokens][v_dim]`
    pub v: Shared<'a, f32>,
    /// What attention gathered, the input of o.
    pub att: SharedActs<'a>,
    /// What is added to the residual stream, `[tokens][dim]`
    pub y: Shared<'a, f32>,
    /// `[tokens][hidden_dim]`
    pub up: Shared<'a, f32>,
    /// Gate, then gate times up: the input of down.
    pub h: SharedActs<'a>,
    /// Cosines and sines, `[tokens][n_rot]`
    pub rope: Shared<'a, f32>,
    /// The same for sliding-window layers.
    pub rope_local: Shared<'a, f32>,
    /// The final hidden vectors, `[tokens][dim]`
    pub hidden: Shared<'a, f32>,
    /// Keys and values of all positions.
    pub cache: SharedCache<'a>,
    /// One a member.
    pub workers: Shared<'a, Worker>,
}

impl State {
    /// How much memory [`State::new`] takes for a model of this outline.
    pub fn plan(outline: &Outline, options: &StateOptions) -> Result<Plan, StateError> {
        let c = &outline.config;
        options.kv.check(c)?;
        let per_token = c.n_layers * options.kv.bytes(c);
        let max = usize::MAX / 4 / per_token.max(c.group() * 64);
        if !(1..=max).contains(&options.ctx) {
            return Err(StateError::Context { ctx: options.ctx, max });
        }
        let buffer_bytes = Sizes::new(outline, options).bytes(options);
        Ok(Plan { kv_bytes: per_token * options.ctx, buffer_bytes })
    }

    /// An empty state. Of a KV cache in memory only addresses are taken; memory is when positions are filled.
    pub fn new(model: &Model<'_>, options: StateOptions, kv: &Place) -> Result<Self, StateError> {
        Self::plan(&model.outline, &options)?;
        let c = &model.config;
        let s = Sizes::new(&model.outline, &options);
        let n = options.batch;
        let floats = |len: usize| zeros::<f32>(n * len, "buffers");
        let worker = |_| {
            let mut w = Worker::default();
            let failed =
                |_| StateError::Memory { bytes: s.scores * size_of::<f32>(), what: "attention scores" };
            w.scores.try_reserve_exact(s.scores).map_err(failed)?;
            Ok(w)
        };
        Ok(Self {
            pos: 0,
            cache: Cache::new(options.kv, c, options.ctx, kv)?,
            buffers: Buffers {
                x: floats(s.dim)?,
                xn: Acts::new(s.dim, n, s.forms.x, s.forms.x_refined, READERS),
                q: floats(s.q)?,
                k: floats(s.k)?,
                v: floats(s.v)?,
                att: Acts::new(s.att, n, s.forms.att, [None, None], 1),
                y: floats(s.dim)?,
                up: floats(s.hidden)?,
                h: Acts::new(s.hidden, n, s.forms.h, s.forms.h_refined, 1),
                rope: floats(s.n_rot)?,
                rope_local: if s.ropes > 1 { floats(s.n_rot)? } else { Vec::new() },
                workers: (0..options.threads).map(worker).collect::<Result<_, StateError>>()?,
            },
            hidden: floats(s.dim)?,
            n_hidden: 0,
            options,
        })
    }

    /// The choices it was made with.
    pub fn options(&self) -> &StateOptions {
        &self.options
    }

    /// Tokens evaluated so far.
    pub fn position(&self) -> usize {
        self.pos
    }

    /// Forgets all tokens from position `pos` on. Does nothing if there are not so many.
    pub fn truncate(&mut self, pos: usize) {
        if pos < self.pos {
            self.pos = pos;
            self.n_hidden = 0;
        }
    }

    /// The final hidden vectors of the last batch, `[tokens][dim]`; empty if the last tokens were forgotten.
    pub fn hidden(&self) -> &[f32] {
        let dim = self.hidden.len() / self.options.batch;
        &self.hidden[..self.n_hidden * dim]
    }

    /// Notes that a batch is complete (`Some(tokens)`) or failed.
    pub(super) fn advance(&mut self, tokens: Option<usize>) {
        self.n_hidden = tokens.unwrap_or(0);
        self.pos += self.n_hidden;
    }

    /// Lends memory for `n` tokens.
    pub(super) fn lend(&mut self, c: &Config, n: usize) -> Lent<'_> {
        let b = &mut self.buffers;
        let cut = |v: &mut Vec<f32>, width: usize| n.min(v.len() / width) * width;
        macro_rules! share {
            ($v:expr, $width:expr) => {{
                let end = cut(&mut $v, $width);
                Shared::new(&mut $v[..end], $width)
            }};
        }
        Lent {
            x: share!(b.x, c.dim),
            xn: b.xn.share(n),
            q: share!(b.q, c.q_dim()),
            k: share!(b.k, c.k_dim()),
            v: share!(b.v, c.v_dim()),
            att: b.att.share(n),
            y: share!(b.y, c.dim),
            up: share!(b.up, c.hidden_dim),
            h: b.h.share(n),
            rope: share!(b.rope, c.rope.n_rot),
            rope_local: share!(b.rope_local, c.rope.n_rot),
            hidden: share!(self.hidden, c.dim),
            cache: self.cache.share(c, self.options.ctx),
            workers: Shared::new(&mut b.workers, 1),
        }
    }
}

/// `n` zeros that are not touched before they are used, or an error where `vec!` would end the process.
fn zeros<T: Clone + Default>(n: usize, what: &'static str) -> Result<Vec<T>, StateError> {
    // `vec!` asks the system for zeroed pages and touches none, but cannot fail; so ask first whether there is room.
    // The answer is kept first: the memory asked for must be given back before it is taken again.
    let room = Vec::<T>::new().try_reserve_exact(n);
    match room {
        Ok(()) => Ok(vec![T::default(); n]),
        Err(_) => Err(StateError::Memory { bytes: n.saturating_mul(size_of::<T>()), what }),
    }
}
