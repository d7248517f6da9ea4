//! `twinband run`: one prompt, one answer.

use std::io::{self, StdoutLock, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::gpu::GpuReport;
use super::load::{self, Loaded, Shown};
use super::options::{self, EngineOptions, Limit, SamplingOptions};
use super::{Interrupted, Progress, Ui, interrupt, report};
use crate::generate::{Listener, Request, Session, StopReason};
use crate::tokenizer::Special;
use crate::tokenizer::template::{ChatOptions, Message};

/// Continue a prompt, or answer it with --chat
///
/// The prompt is continued as it stands, without the model's chat template; --chat puts it into the template as the
/// user's message, which is what instruction-tuned models are trained on.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model file (GGUF; any part of a split set)
    model: PathBuf,

    /// The prompt; from standard input when neither this nor -f is given, or when it is -
    prompt: Option<String>,

    /// Read the prompt from a file; one newline at its end is not part of it
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,

    /// Generate at most N tokens; -1 until the model ends or the context is full
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value = "256", value_parser = options::limit, allow_negative_numbers = true)]
    tokens: Limit,

    /// End the text before this string; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Put the prompt into the model's chat template
    #[arg(long)]
    chat: bool,

    /// The system message of --chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,

    /// Use another chat template: an alternative in the file by name, a built-in one by name, or a file
    #[arg(long, value_name = "NAME|FILE", requires = "chat")]
    template: Option<String>,

    /// Read special tokens such as <|im_end|> in the prompt as tokens, and show those the model gives
    #[arg(long)]
    special: bool,

    /// Go on when the model ends its text
    #[arg(long)]
    ignore_eos: bool,

    /// Print speed, memory and the digest of the logits on standard error at the end
    #[arg(long)]
    stats: bool,

    /// Print one JSON object at the end instead of the text as it comes
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    sampling: SamplingOptions,

    #[command(flatten)]
    engine: EngineOptions,
}

/// Generates and prints.
pub fn run(args: &Args, ui: &Ui) -> anyhow::Result<()> {
    let mut sampler = args.sampling.sampler(0.0, ui)?;
    let text = options::prompt(args.prompt.as_deref(), args.file.as_ref())?;
    let file = load::file(&args.model)?;
    let model = Loaded::new(&file, &args.engine, ui)?;
    let special = if args.special { Special::Parse } else { Special::Ignore };
    let ids = if args.chat {
        let system = args.system.iter().map(|text| Message::new("system", text.as_str()));
        let messages: Vec<Message> = system.chain([Message::new("user", text)]).collect();
        let template = model.template(args.template.as_deref(), ui)?;
        template.encode(&model.tokenizer, &messages, &ChatOptions::default())?
    } else {
        model.tokenizer.encode_prompt(&text, special)
    };
    let request = Request {
        prompt: &ids,
        max_tokens: args.tokens.0,
        stop: &args.stop,
        batch: model.engine.batch(),
        ignore_end: args.ignore_eos,
        digest: args.stats || args.json,
    };
    let mut printer = Printer::new(!args.json, ui)?;
    let vocabulary = Shown { tokenizer: &model.tokenizer, special: args.special };
    let mut session = Session::new(model.engine);
    file.check_unchanged()?;
    let answer = session.generate(&request, &mut sampler, &vocabulary, &mut printer)?;
    printer.end()?;
    if args.json {
        report::json(&report::Run::new(&answer, GpuReport::new(session.engine().dual())))?;
    }
    if args.stats {
        ui.stats(report::stats(&answer, session.engine()));
    }
    match answer.stop {
        StopReason::Context => ui.note(format_args!(
            "the context of {} tokens is full: raise it with --ctx",
            session.engine().ctx()
        )),
        StopReason::Interrupted if answer.tokens.is_empty() => return Err(Interrupted.into()),
        _ => {}
    }
    Ok(())
}

/// Shows a text as it comes.
pub struct Printer {
    out: Option<StdoutLock<'static>>,
    ui: Ui,
    progress: Option<Progress>,
    flag: &'static AtomicBool,
    ends_line: bool,
}

impl Printer {
    /// Prints text if `show`; catches Ctrl-C from now on.
    pub fn new(show: bool, ui: &Ui) -> anyhow::Result<Self> {
        Ok(Printer {
            out: show.then(|| io::stdout().lock()),
            ui: ui.clone(),
            progress: None,
            flag: interrupt::flag()?,
            ends_line: true,
        })
    }

    /// Ends the line, if text is on it, and shows what came up meanwhile.
    pub fn end(&mut self) -> io::Result<()> {
        let ended = match &mut self.out {
            Some(out) if !self.ends_line => {
                self.ends_line = true;
                out.write_all(b"\n").and_then(|()| out.flush())
            }
            _ => Ok(()),
        };
        self.ui.catch_up();
        ended
    }
}

impl Listener for Printer {
    fn prompt(&mut self, done: usize, total: usize) {
        if done == total {
            self.progress = None;
        } else {
            let ui = &self.ui;
            self.progress.get_or_insert_with(|| ui.progress("prompt", total as u64)).set(done as u64);
        }
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.ends_line = text.ends_with('\n');
        match &mut self.out {
            Some(out) => {
                out.write_all(text.as_bytes())?;
                out.flush()
            }
            None => Ok(()),
        }
    }

    fn interrupted(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }
}
