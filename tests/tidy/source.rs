//! Just enough reading of Rust source to tell code from comments and strings, and to find the paths in it.

/// `text` with comments, strings and character literals blanked out, line for line.
pub fn code_of(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let previous_is_word = out.chars().last().is_some_and(is_word);
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(n) = (!previous_is_word).then(|| raw_string(rest)).flatten() {
            n
        } else if c == '"' {
            quoted(rest, '"')
        } else if c == '\'' && is_char_literal(rest) {
            quoted(rest, '\'')
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        out.extend(rest[..skipped].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[skipped..];
    }
    out
}

/// Bytes of the block comment at the start of `text`, nested ones included.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < text.len() {
        match text.as_bytes().get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(text.len())
}

/// Bytes of the raw string literal at the start of `text`, or `None` if there is none.
fn raw_string(text: &str) -> Option<usize> {
    let body = text.strip_prefix('b').unwrap_or(text).strip_prefix('r')?;
    let hashes = body.bytes().take_while(|b| *b == b'#').count();
    let opened = body[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let start = text.len() - opened.len();
    Some(opened.find(&close).map_or(text.len(), |n| start + n + close.len()))
}

/// Bytes of the literal at the start of `text` that ends with an unescaped `quote`.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = true; // the opening quote
    for (at, c) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return at + 1;
        }
    }
    text.len()
}

/// Tells `'a'` from the lifetime `'a`.
fn is_char_literal(text: &str) -> bool {
    let mut chars = text.chars().skip(1);
    matches!((chars.next(), chars.next()), (Some('\\'), _) | (Some(_), Some('\'')))
}

/// Every path in `code` that begins with `root::`, without it: `use root::{a, b::{c, d}}` gives `a`, `b::c`, `b::d`.
pub fn paths_under(code: &str, root: &str) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    for (at, _) in code.match_indices(root) {
        let before = &code[..at];
        if before.chars().last().is_some_and(is_word) || before.trim_end().ends_with("::") {
            continue;
        }
        let after = code[at + root.len()..].trim_start();
        if let Some(tree) = after.strip_prefix("::") {
            let line = 1 + before.matches('\n').count();
            let mut leaves = Vec::new();
            use_tree(tree, "", &mut leaves);
            out.extend(leaves.into_iter().map(|path| (line, path)));
        }
    }
    out
}

/// Collects the leaves of the use tree at the start of `text` and returns what follows it.
fn use_tree<'a>(text: &'a str, prefix: &str, leaves: &mut Vec<String>) -> &'a str {
    let mut text = text.trim_start();
    let mut path = prefix.to_owned();
    loop {
        if let Some(mut inner) = text.strip_prefix('{') {
            loop {
                inner = inner.trim_start();
                if let Some(rest) = inner.strip_prefix('}') {
                    return rest;
                }
                let rest = use_tree(inner, &path, leaves).trim_start();
                // Past `as name` and the comma; a text that does not get shorter is not a use tree.
                inner = rest.find([',', '}']).map_or("", |n| rest[n..].trim_start_matches(','));
                if inner.is_empty() {
                    return inner;
                }
            }
        }
        let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
        path.push_str(&text[..end]);
        text = text[end..].trim_start();
        match text.strip_prefix("::") {
            Some(rest) if rest.trim_start().starts_with(|c| is_word(c) || c == '{') => {
                path.push_str("::");
                text = rest.trim_start();
            }
            _ => break,
        }
    }
    leaves.push(path.trim_end_matches("::self").trim_end_matches("::").to_owned());
    text
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The identifiers and keywords of a line with their byte offsets.
pub fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    line.split(|c| !is_word(c))
        .filter(|word| !word.is_empty())
        .map(move |word| (word.as_ptr() as usize - line.as_ptr() as usize, word))
}

pub fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split('\n').enumerate().map(|(i, line)| (i + 1, line))
}
