//! What `run` and `bench` tell about a run: the fields of `--json`, the lines of `--stats`.

use serde::Serialize;

use super::gpu::GpuReport;
use crate::generate::{Answer, memory};
use crate::head::Engine;
pub use crate::head::split::median;

/// `run --json`.
#[derive(Debug, Serialize)]
pub struct Run<'a> {
    /// The text generated.
    pub text: &'a str,
    /// The ids of its tokens, an end-of-text token included.
    pub tokens: &'a [u32],
    /// How many tokens the prompt had.
    pub prompt_tokens: usize,
    /// Of the logits, 16 hex digits.
    pub digest: String,
    /// eos, stop, length, context or interrupted.
    pub stop_reason: &'static str,
    /// Prompt tokens a second.
    pub prefill_tps: f64,
    /// Generated tokens a second.
    pub decode_tps: f64,
    /// Peak of the memory allocated, sampled.
    pub rss_anon_peak_bytes: u64,
    /// What the GPU did.
    pub gpu: GpuReport,
}

impl<'a> Run<'a> {
    /// The fields for an answer; the memory's peak is that until now.
    pub fn new(answer: &'a Answer, gpu: GpuReport) -> Self {
        Run {
            text: &answer.text,
            tokens: &answer.tokens,
            prompt_tokens: answer.prompt_tokens,
            digest: answer.digest.to_string(),
            stop_reason: answer.stop.name(),
            prefill_tps: answer.timing.prefill_tps(),
            decode_tps: answer.timing.decode_tps(),
            rss_anon_peak_bytes: memory::peak().anon,
            gpu,
        }
    }
}

/// The lines of `--stats`.
pub fn stats(answer: &Answer, engine: &Engine<'_>) -> String {
    let memory = memory::peak();
    let timing = &answer.timing;
    let gpu = GpuReport::new(engine.dual());
    let mut lines = vec![
        format!(
            "prompt   {} tokens, {} evaluated at {:.1} tok/s",
            answer.prompt_tokens,
            timing.prompt_evals,
            timing.prefill_tps()
        ),
        format!(
            "answer   {} tokens at {:.1} tok/s; ended: {}",
            answer.tokens.len(),
            timing.decode_tps(),
            answer.stop
        ),
        format!("digest   {}", answer.digest),
        format!(
            "memory   {} allocated, {} with the file's pages (peaks)",
            bytes(memory.anon),
            bytes(memory.total)
        ),
        format!("engine   {}, {} threads, gpu {}", engine.isa().name(), engine.threads(), gpu.line()),
    ];
    lines.extend(gpu.times.map(|times| times.lines()));
    if answer.reused > 0 {
        lines.insert(1, format!("reused   {} tokens of the prompt", answer.reused));
    }
    lines.join("\n")
}

/// A size for people, in units of 1000.
pub fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..1_000_000 => format!("{:.0} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}

/// Writes a value as one line of JSON to standard output.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[3.0, 1.0]), 2.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn sizes_for_people() {
        for (n, text) in [(0, "0 B"), (9999, "9999 B"), (98_362_432, "98.4 MB"), (2_500_000_000, "2.50 GB")] {
            assert_eq!(bytes(n), text);
        }
    }
}
