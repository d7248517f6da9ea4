//! Chat templates: a conversation as the text, and the token ids, that the model was trained to continue.
//!
//! Templates are written in the Jinja dialect of the Python libraries that train models, and run here with their
//! settings (`trim_blocks`, `lstrip_blocks`). Supported are:
//!
//! - statements `for` (with `else`, `recursive`, `break`, `continue`), `if`, `set`, `macro`, `call`, `filter`, `with`,
//!   `do`, `raw`, and `generation` (without effect);
//! - expressions with slices, inline `if`, `~`, `is` and `in`; `loop.*`, `namespace()`, `range()`, `dict()`;
//! - the usual filters (`capitalize default dictsort first groupby indent int items join last length list lower map
//!   reject rejectattr replace select selectattr sort string sum title tojson trim unique upper` and more) and tests;
//! - the methods of Python's strings, lists and dicts (`strip split startswith items get` ...);
//! - `raise_exception(message)` and `strftime_now(format)` (UTC).
//!
//! Variables: `messages` (each with `role` and `content`), `add_generation_prompt`, `bos_token`, `eos_token`, `tools`
//! and `documents` (none), and `enable_thinking` where it is chosen.
//!
//! A user's text never becomes control tokens: see [`ChatTemplate::encode`].

mod builtin;
mod encode;
mod functions;

use std::path::{Path, PathBuf};

use minijinja::{Environment, ErrorKind, Value, context};
use serde::Serialize;
use thiserror::Error as ThisError;

use super::Tokenizer;
use crate::gguf::{self, Meta, printable};

/// Instructions that a template may take: a hundred times what long conversations need, and less than a second.
const FUEL: u64 = 50_000_000;

/// The metadata key of a model's own template; alternatives have a name appended, behind a dot.
const KEY: &str = "tokenizer.chat_template";

/// Why a conversation has no text.
#[derive(Debug, ThisError)]
pub enum Error {
    /// The metadata value has the wrong type.
    #[error(transparent)]
    Meta(#[from] gguf::Error),
    /// The template is not written in the language, or in a part of it that is not supported.
    #[error("chat template ({origin}), line {line}: {detail}{}", shown(construct))]
    Syntax {
        /// Where the template is from.
        origin: Origin,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        detail: String,
        /// The line's text.
        construct: String,
    },
    /// The template ran into an error of its own.
    #[error("chat template ({origin}){}: {detail}{}", at(*line), shown(construct))]
    Render {
        /// Where the template is from.
        origin: Origin,
        /// Line, from 1; 0 where it is not known.
        line: usize,
        /// What is wrong.
        detail: String,
        /// The line's text.
        construct: String,
    },
    /// The template refuses the conversation: its own message.
    #[error("the model's chat template refuses this conversation: {0}")]
    Refused(String),
    /// Neither a template of the file, nor one built in, nor a file.
    #[error(
        "no chat template \"{name}\": it is no file{cause}, {}, and not built in ({})",
        if *in_model { "not one of the model's" } else { "the model has none by that name" },
        builtin::names().collect::<Vec<_>>().join(", ")
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// Why it could not be read as a file.
        cause: String,
        /// Whether the model has templates at all.
        in_model: bool,
    },
}

fn at(line: usize) -> String {
    if line == 0 { String::new() } else { format!(", line {line}") }
}

fn shown(construct: &str) -> String {
    if construct.is_empty() { String::new() } else { format!(": `{construct}`") }
}

/// Where a template is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The model file.
    Model,
    /// The model file, an alternative by name.
    Alternative(String),
    /// Built in, asked for by name.
    Builtin(&'static str),
    /// Built in, because the model file has none.
    Fallback {
        /// Its name.
        name: &'static str,
        /// Why this one.
        because: &'static str,
    },
    /// A file.
    File(PathBuf),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Model => f.write_str("the model's own"),
            Origin::Alternative(name) => write!(f, "the model's \"{name}\""),
            Origin::Builtin(name) => write!(f, "built-in {name}"),
            Origin::Fallback { name, because } => {
                write!(f, "built-in {name}: the model file has no template, and {because}")
            }
            Origin::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// What to tell the template besides the messages.
#[derive(Debug, Clone)]
pub struct ChatOptions {
    /// End with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Whether the model is to think aloud first; where `None` the template decides.
    pub enable_thinking: Option<bool>,
    /// The time for templates that tell the model the date, in seconds since 1970; where `None` it is now.
    pub now: Option<u64>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, enable_thinking: None, now: None }
    }
}

/// A parsed template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    origin: Origin,
}

impl ChatTemplate {
    /// The model's own template; `None` where it has none.
    pub fn from_gguf(meta: &Meta) -> Result<Option<Self>, Error> {
        meta.str(KEY)?.map(|source| Self::parse(source, Origin::Model)).transpose()
    }

    /// The template asked for: an alternative of the model's by name, one built in by name, or a file. Without a wish
    /// the model's own, or else the [fallback](Self::fallback).
    pub fn choose(meta: &Meta, tokenizer: &Tokenizer, wish: Option<&str>) -> Result<Self, Error> {
        let Some(name) = wish else {
            return match Self::from_gguf(meta)? {
                Some(own) => Ok(own),
                None => Self::fallback(tokenizer),
            };
        };
        if let Some(source) = meta.str(&format!("{KEY}.{name}"))? {
            return Self::parse(source, Origin::Alternative(printable(name.as_bytes())));
        }
        if let Some((name, source)) = builtin::by_name(name) {
            return Self::parse(source, Origin::Builtin(name));
        }
        match std::fs::read_to_string(name) {
            Ok(source) => Self::parse(&source, Origin::File(Path::new(name).to_owned())),
            Err(e) => Err(Error::Unknown {
                name: name.to_owned(),
                cause: format!(" ({e})"),
                in_model: meta.get(KEY).is_some(),
            }),
        }
    }

    /// A built-in template for a model that has none, chosen by the markers in its vocabulary. Its
    /// [origin](Self::origin) says which and why: tell the user.
    pub fn fallback(tokenizer: &Tokenizer) -> Result<Self, Error> {
        let has = |text: &&str| tokenizer.special(text).is_some();
        let fallback = builtin::ALL
            .iter()
            .find(|b| b.markers.iter().all(has))
            // The last one has no markers.
            .unwrap_or(&builtin::ALL[builtin::ALL.len() - 1]);
        let origin = Origin::Fallback { name: fallback.name, because: fallback.because };
        Self::parse(fallback.source, origin)
    }

    /// Parses the text of a template.
    pub fn parse(source: &str, origin: Origin) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        functions::add_to(&mut environment);
        let source = without_generation(source);
        environment.add_template_owned("chat", source.clone()).map_err(|e| {
            let line = e.line().unwrap_or(1);
            let detail = detail_of(&e);
            Error::Syntax { origin: origin.clone(), line, detail, construct: line_of(&source, line) }
        })?;
        Ok(Self { environment, source, origin })
    }

    /// Where the template is from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The conversation as text, for showing: encoding it would let users' text become control tokens, which
    /// [`encode`](Self::encode) does not.
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<String, Error> {
        let text = |id: Option<u32>| {
            id.map_or_else(String::new, |id| {
                String::from_utf8_lossy(&tokenizer.piece_special(id)).into_owned()
            })
        };
        let mut variables = vec![
            ("messages", Value::from_serialize(messages)),
            ("add_generation_prompt", options.add_generation_prompt.into()),
            ("bos_token", text(tokenizer.bos()).into()),
            ("eos_token", text(tokenizer.eos()).into()),
            ("tools", ().into()),
            ("documents", ().into()),
            (functions::NOW, functions::now(options.now).into()),
        ];
        variables.extend(options.enable_thinking.map(|on| ("enable_thinking", on.into())));
        let variables = Value::from_iter(variables);
        let rendered = self
            .environment
            .get_template("chat")
            .and_then(|template| template.render(context! { ..variables }));
        rendered.map_err(|e| self.explain(&e))
    }

    fn explain(&self, error: &minijinja::Error) -> Error {
        if let Some(message) = functions::refusal(error) {
            return Error::Refused(message);
        }
        let line = error.line().unwrap_or(0);
        let detail = match error.kind() {
            ErrorKind::OutOfFuel => format!("took more than {FUEL} instructions: stopped"),
            _ => detail_of(error),
        };
        Error::Render { origin: self.origin.clone(), line, detail, construct: line_of(&self.source, line) }
    }
}

/// What is wrong, without the place.
fn detail_of(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn line_of(source: &str, line: usize) -> String {
    const SHOWN: usize = 120;
    let text = line.checked_sub(1).and_then(|at| source.lines().nth(at)).unwrap_or_default().trim();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// `{% generation %}` marks what training learns; for us it does nothing.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let name_at = tag.len() - tag.trim_start_matches(['-', '+']).trim_start().len();
        let name = &tag[name_at..];
        let end = name.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(name.len());
        out.push_str(&tag[..name_at]);
        out.push_str(match &name[..end] {
            "generation" => "if true",
            "endgeneration" => "endif",
            other => other,
        });
        rest = &name[end..];
    }
    out + rest
}

#[cfg(test)]
mod tests;
