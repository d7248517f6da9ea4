//! `twinband tokenize`: the tokens of a text.

use std::io::{self, Write as _};
use std::path::PathBuf;

use serde::Serialize;

use super::{Ui, options, report};
use crate::g2bx;
use crate::tokenizer::{Options, Special, Tokenizer};

/// Show the tokens of a text: id and piece of each, one a line
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model file (GGUF); of its contents only the header need be there
    model: PathBuf,

    /// The text; from standard input when neither this nor -f is given, or when it is -
    text: Option<String>,

    /// Read the text from a file; one newline at its end is not part of it
    #[arg(short, long, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,

    /// Read special tokens such as <|im_end|> in the text as tokens
    #[arg(long)]
    special: bool,

    /// Print the ids alone, all on one line
    #[arg(long, conflicts_with = "json")]
    ids: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Leave out the BOS and EOS that the model puts around every prompt
    #[arg(long)]
    no_bos: bool,

    /// Cut text as this pre-tokenizer does, against what the file says
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
}

#[derive(Serialize)]
struct Report {
    tokens: Vec<Token>,
}

#[derive(Serialize)]
struct Token {
    id: u32,
    /// With U+FFFD for what is not UTF-8.
    text: String,
    /// Where `text` is not the whole truth.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Vec<u8>>,
}

/// Encodes and prints.
pub fn run(args: &Args, ui: &Ui) -> anyhow::Result<()> {
    let file = g2bx::open_header(&args.model)?;
    let tokenizer = Tokenizer::from_gguf(file.meta(), &Options { pre: args.pre.clone() })?;
    for warning in tokenizer.warnings() {
        ui.warn(warning);
    }
    let text = options::prompt(args.text.as_deref(), args.file.as_ref())?;
    let special = if args.special { Special::Parse } else { Special::Ignore };
    let ids =
        if args.no_bos { tokenizer.encode(&text, special) } else { tokenizer.encode_prompt(&text, special) };
    if args.json {
        let tokens = ids.iter().map(|&id| {
            let piece = tokenizer.piece_special(id);
            let bytes = str::from_utf8(&piece).is_err().then(|| piece.to_vec());
            Token { id, text: String::from_utf8_lossy(&piece).into_owned(), bytes }
        });
        return report::json(&Report { tokens: tokens.collect() });
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.ids {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        writeln!(out, "{}", ids.join(" "))?;
    } else {
        for &id in &ids {
            writeln!(out, "{id:>6}  {}", quoted(&tokenizer.piece_special(id)))?;
        }
    }
    out.flush()?;
    Ok(())
}

/// The piece in quotes, with escapes for what would not show.
fn quoted(piece: &[u8]) -> String {
    let mut text = String::from("\"");
    for chunk in piece.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' => text.push(c),
                _ => text.extend(c.escape_debug()),
            }
        }
        for byte in chunk.invalid() {
            text += &format!("\\x{byte:02x}");
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn pieces_show_as_they_are() {
        let cases: [(&[u8], &str); 6] = [
            (b" Hello", "\" Hello\""),
            (b"\n\t", "\"\\n\\t\""),
            ("é'\"".as_bytes(), "\"é'\\\"\""),
            (b"\xF0\x9F", "\"\\xf0\\x9f\""),
            (b"a\0", "\"a\\0\""),
            (b"", "\"\""),
        ];
        for (piece, shown) in cases {
            assert_eq!(quoted(piece), shown);
        }
    }
}
