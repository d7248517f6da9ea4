//! A generated text and how it came about.

use std::fmt;
use std::time::Duration;

use super::digest::Digest;

/// Why a text ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended it with this token.
    End(u32),
    /// A stop string was complete.
    StopString(String),
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    Context,
    /// The listener interrupted.
    Interrupted,
}

impl StopReason {
    /// The word in `run --json`.
    pub fn name(&self) -> &'static str {
        match self {
            StopReason::End(_) => "eos",
            StopReason::StopString(_) => "stop",
            StopReason::Length => "length",
            StopReason::Context => "context",
            StopReason::Interrupted => "interrupted",
        }
    }
}

impl fmt::Display for StopReason {
    /// For people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::End(id) => write!(f, "the model ended the text (token {id})"),
            StopReason::StopString(stop) => write!(f, "stop string {stop:?}"),
            StopReason::Length => f.write_str("as many tokens as asked for"),
            StopReason::Context => f.write_str("the context is full"),
            StopReason::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// A generated text and how it came about.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What was shown.
    pub text: String,
    /// Every token sampled, one that ended the text included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop: StopReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, how many an earlier call had evaluated.
    pub reused: usize,
    /// Of all logits sampled from, when asked for.
    pub digest: Digest,
    /// Time of evaluating the prompt and of decoding.
    pub timing: Timing,
}

/// Where the time went. Showing the text and computing the digest count nowhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timing {
    /// Prompt tokens evaluated.
    pub prompt_evals: usize,
    /// Time for these, without the head.
    pub prompt: Duration,
    /// Generated tokens evaluated: one fewer than sampled, as nothing follows the last.
    pub evals: usize,
    /// Time for these: forward pass, head and sampling.
    pub decode: Duration,
}

impl Timing {
    /// Prompt tokens a second; 0 when none was evaluated.
    pub fn prefill_tps(&self) -> f64 {
        rate(self.prompt_evals, self.prompt)
    }

    /// Generated tokens a second; 0 when fewer than two were generated.
    pub fn decode_tps(&self) -> f64 {
        rate(self.evals, self.decode)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if count == 0 || time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}
