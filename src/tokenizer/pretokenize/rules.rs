//! The patterns themselves. Each function stands for the regular expression above it, tried at the start of the
//! text (never empty), and takes time linear in what it matches or skips.

use super::class::{Class, blank, char_at, class_at, run};
use super::{Step, Step::Match};

/// No match here; try at the next character.
fn next(text: &[u8]) -> Step {
    Step::Skip(char_at(text, 0).1)
}

fn matched(text: &[u8], len: usize) -> Step {
    if len > 0 { Match(len) } else { next(text) }
}

/// `\s+(?!\S)|\s+`: white space, but for its last character where something follows.
fn spaces(text: &[u8]) -> usize {
    let blank = blank(text);
    if blank.end == text.len() || blank.last == 0 { blank.end } else { blank.last }
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`
fn lines_or_spaces(text: &[u8]) -> usize {
    let blank = blank(text);
    if blank.newline > 0 {
        blank.newline
    } else if blank.end == text.len() || blank.last == 0 {
        blank.end
    } else {
        blank.last
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, in any case with `fold`; 0 for none.
fn contraction(text: &[u8], fold: bool) -> usize {
    if text[0] != b'\'' {
        return 0;
    }
    let letter = |at: usize| match text.get(at) {
        Some(b) if fold => b.to_ascii_lowercase(),
        Some(&b) => b,
        None => 0,
    };
    match (letter(1), letter(2)) {
        (b's' | b't' | b'm' | b'd', _) => 2,
        (b'r' | b'v', b'e') | (b'l', b'l') => 3,
        _ => 0,
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub(super) fn gpt2(text: &[u8]) -> Step {
    let short = contraction(text, false);
    if short > 0 {
        return Match(short);
    }
    let start = usize::from(text[0] == b' ');
    let end = match class_at(text, start) {
        None | Some((Class::Space, _)) => spaces(text),
        Some((Class::Number, _)) => run(text, start, |c| c == Class::Number),
        Some((class, _)) if class.is_letter() => run(text, start, Class::is_letter),
        Some(_) => run(text, start, |c| !matches!(c, Class::Space | Class::Number) && !c.is_letter()),
    };
    matched(text, end)
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
///
/// With `MARKS` the marks `\p{M}` count as letters, except as the character before a word.
pub(super) fn cl100k<const DIGITS: usize, const MARKS: bool>(text: &[u8]) -> Step {
    let short = contraction(text, true);
    if short > 0 {
        return Match(short);
    }
    let letter = |class: Class| class.is_letter() || (MARKS && class == Class::Mark);
    let Some((first, len)) = class_at(text, 0) else { return next(text) };
    if letter(first) {
        return Match(run(text, 0, letter));
    }
    if first == Class::Number {
        return Match(digits::<DIGITS>(text));
    }
    if !matches!(text[0], b'\r' | b'\n') && class_at(text, len).is_some_and(|(class, _)| letter(class)) {
        return Match(run(text, len, letter));
    }
    let signs = signs(text, |c| !matches!(c, Class::Space | Class::Number) && !letter(c), b"\r\n");
    matched(text, if signs > 0 { signs } else { lines_or_spaces(text) })
}

/// ` ?[signs]+[tail]*`; 0 for none.
fn signs(text: &[u8], is: impl Fn(Class) -> bool, tail: &[u8]) -> usize {
    let start = usize::from(text[0] == b' ');
    let end = run(text, start, is);
    if end == start {
        return 0;
    }
    end + text[end..].iter().take_while(|b| tail.contains(b)).count()
}

/// `\p{N}{1,DIGITS}`; 0 for none.
fn digits<const DIGITS: usize>(text: &[u8]) -> usize {
    let mut at = 0;
    for _ in 0..DIGITS {
        match class_at(text, at) {
            Some((Class::Number, len)) => at += len,
            _ => break,
        }
    }
    at
}

/// `\p{N}{1,DIGITS}`
pub(super) fn numbers<const DIGITS: usize>(text: &[u8]) -> Step {
    matched(text, digits::<DIGITS>(text))
}

/// `[0-9][0-9][0-9]`
pub(super) fn three_digits(text: &[u8]) -> Step {
    match text {
        [a, b, c, ..] if [a, b, c].iter().all(|d| d.is_ascii_digit()) => Match(3),
        _ => next(text),
    }
}

/// ``[\p{P}$+<=>^~|`]+`` (with the backtick only where `BACKTICK`)
pub(super) fn punctuation<const BACKTICK: bool>(text: &[u8]) -> Step {
    let mut at = 0;
    while let Some((class, len)) = class_at(text, at) {
        let ascii_sign = class == Class::Symbol && text[at].is_ascii() && (BACKTICK || text[at] != b'`');
        if class != Class::Punct && !ascii_sign {
            break;
        }
        at += len;
    }
    matched(text, at)
}

/// `[\r\n]`
pub(super) fn newline(text: &[u8]) -> Step {
    if matches!(text[0], b'\r' | b'\n') { Match(1) } else { next(text) }
}

/// `[^\n]+|[\n]+`
pub(super) fn line(text: &[u8]) -> Step {
    let newlines = text[0] == b'\n';
    Match(text.iter().take_while(|&&b| (b == b'\n') == newlines).count())
}

/// `\s+$`
pub(super) fn trailing_space(text: &[u8]) -> Step {
    match blank(text).end {
        0 => next(text),
        end if end == text.len() => Match(end),
        // No start within this run reaches the end either.
        end => Step::Skip(end),
    }
}

/// `\s?\p{L}+`
pub(super) fn space_letters(text: &[u8]) -> Step {
    space_then(text, |text, at| run(text, at, Class::is_letter))
}

/// `\s?\p{P}+`
pub(super) fn space_puncts(text: &[u8]) -> Step {
    space_then(text, |text, at| run(text, at, |c| c == Class::Punct))
}

/// `\s?[...]+` over [`CASED`]
pub(super) fn space_cased(text: &[u8]) -> Step {
    space_then(text, |text, at| chars(text, at, |c| within(CASED, c)))
}

/// `\s?[!-/:-~！-／：-～‘-‟　-。]+`; white space (U+3000) does not count as one of them.
pub(super) fn space_signs(text: &[u8]) -> Step {
    space_then(text, |text, at| {
        chars(text, at, |c| {
            matches!(c, '!'..='/' | ':'..='~' | '\u{FF01}'..='\u{FF0F}' | '\u{FF1A}'..='\u{FF5E}'
                | '\u{2018}'..='\u{201F}' | '\u{3001}'..='\u{3002}')
        })
    })
}

fn space_then(text: &[u8], end_of: impl Fn(&[u8], usize) -> usize) -> Step {
    let start = match class_at(text, 0) {
        Some((Class::Space, len)) => len,
        _ => 0,
    };
    let end = end_of(text, start);
    if end > start { Match(end) } else { next(text) }
}

/// `[一-龥ࠀ-一가-퟿]+`; white space (U+2000 to U+200A and others) does not count as one of them.
pub(super) fn asian(text: &[u8]) -> Step {
    let asian = |c: char| matches!(c, '\u{800}'..='\u{9FA5}' | '\u{AC00}'..='\u{D7FF}');
    matched(text, chars(text, 0, |c| asian(c) && !c.is_whitespace()))
}

/// `[一-龥぀-ゟ゠-ヿ]+`
pub(super) fn han_kana(text: &[u8]) -> Step {
    matched(text, chars(text, 0, |c| matches!(c, '\u{4E00}'..='\u{9FA5}' | '\u{3040}'..='\u{30FF}')))
}

/// ``[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``
pub(super) fn deepseek3(text: &[u8]) -> Step {
    if text[0].is_ascii_punctuation() {
        let letters = text[1..].iter().take_while(|b| b.is_ascii_alphabetic()).count();
        if letters > 0 {
            return Match(1 + letters);
        }
    }
    let letter = |class: Class| class.is_letter() || class == Class::Mark;
    let Some((first, len)) = class_at(text, 0) else { return next(text) };
    if letter(first) {
        return Match(run(text, 0, letter));
    }
    let sign = |class: Class| matches!(class, Class::Punct | Class::Symbol);
    let before = !matches!(text[0], b'\r' | b'\n') && !sign(first);
    if before && class_at(text, len).is_some_and(|(class, _)| letter(class)) {
        return Match(run(text, len, letter));
    }
    let signs = signs(text, sign, b"\r\n");
    matched(text, if signs > 0 { signs } else { lines_or_spaces(text) })
}

/// `[^\r\n\p{L}\p{N}]?U*L+(SUFFIX)?|[^\r\n\p{L}\p{N}]?U+L*(SUFFIX)?|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
/// where `U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, `L = [\p{Ll}\p{Lm}\p{Lo}\p{M}]` and `SUFFIX` is a contraction in
/// any case: words are cut before a capital that follows a small letter.
pub(super) fn o200k<const DIGITS: usize, const SUFFIX: bool>(text: &[u8]) -> Step {
    let Some((first, len)) = class_at(text, 0) else { return next(text) };
    let before = !first.is_letter() && first != Class::Number && !matches!(text[0], b'\r' | b'\n');
    // The optional character is taken first and given back where no word follows it (a lone mark).
    let mut end = if before { cased_word(text, len) } else { 0 };
    if end == 0 {
        end = cased_word(text, 0);
    }
    if end > 0 {
        if SUFFIX && end < text.len() {
            end += contraction(&text[end..], true);
        }
        return Match(end);
    }
    if first == Class::Number {
        return Match(digits::<DIGITS>(text));
    }
    let sign = |c: Class| !matches!(c, Class::Space | Class::Number) && !c.is_letter();
    let signs = signs(text, sign, b"\r\n/");
    matched(text, if signs > 0 { signs } else { lines_or_spaces(text) })
}

/// The end of `U*L+|U+L*` from `from` on (see [`o200k`]); 0 for none.
fn cased_word(text: &[u8], from: usize) -> usize {
    let both = |class| matches!(class, Class::Uncased | Class::Mark);
    let mut at = from;
    // Behind the last character that may stand on either side: where U* gives way when no small letter follows.
    let mut give_way = 0;
    while let Some((class, len)) = class_at(text, at) {
        if class != Class::Upper && !both(class) {
            break;
        }
        at += len;
        if both(class) {
            give_way = at;
        }
    }
    let end = run(text, at, |class| class == Class::Lower || both(class));
    if end > at {
        end
    } else if give_way > 0 {
        give_way
    } else if at > from {
        at
    } else {
        0
    }
}

/// The end of the run of characters from `from` on that satisfy `is`.
fn chars(text: &[u8], from: usize, is: impl Fn(char) -> bool) -> usize {
    let mut at = from;
    while at < text.len() {
        let (c, len) = char_at(text, at);
        if !c.is_some_and(&is) {
            break;
        }
        at += len;
    }
    at
}

fn within(ranges: &[(char, char)], c: char) -> bool {
    let after = ranges.partition_point(|&(first, _)| first <= c);
    after > 0 && c <= ranges[after - 1].1
}

/// Letters with case, as one tokenizer family lists them (neither a Unicode property nor any version's Lu, Ll, Lt).
#[rustfmt::skip]
const CASED: &[(char, char)] = &[
    ('\u{41}', '\u{5A}'), ('\u{61}', '\u{7A}'), ('\u{B5}', '\u{B5}'), ('\u{C0}', '\u{D6}'),
    ('\u{D8}', '\u{F6}'), ('\u{F8}', '\u{1BA}'), ('\u{1BC}', '\u{1BF}'), ('\u{1C4}', '\u{293}'),
    ('\u{295}', '\u{2AF}'), ('\u{370}', '\u{373}'), ('\u{376}', '\u{377}'), ('\u{37B}', '\u{37D}'),
    ('\u{37F}', '\u{37F}'), ('\u{386}', '\u{386}'), ('\u{388}', '\u{38A}'), ('\u{38C}', '\u{38C}'),
    ('\u{38E}', '\u{3A1}'), ('\u{3A3}', '\u{3F5}'), ('\u{3F7}', '\u{481}'), ('\u{48A}', '\u{52F}'),
    ('\u{531}', '\u{556}'), ('\u{10A0}', '\u{10C5}'), ('\u{13A0}', '\u{13F5}'), ('\u{13F8}', '\u{13FD}'),
    ('\u{1C90}', '\u{1CBA}'), ('\u{1CBD}', '\u{1CBF}'), ('\u{1D00}', '\u{1D2B}'), ('\u{1D6B}', '\u{1D77}'),
    ('\u{1D79}', '\u{1D9A}'), ('\u{1E00}', '\u{1F15}'), ('\u{1F18}', '\u{1F1D}'), ('\u{1F20}', '\u{1F45}'),
    ('\u{1F48}', '\u{1F4D}'), ('\u{1F50}', '\u{1F57}'), ('\u{1F59}', '\u{1F59}'), ('\u{1F5B}', '\u{1F5B}'),
    ('\u{1F5D}', '\u{1F5D}'), ('\u{1F5F}', '\u{1F7D}'), ('\u{1F80}', '\u{1FB4}'), ('\u{1FB6}', '\u{1FBC}'),
    ('\u{1FBE}', '\u{1FBE}'), ('\u{1FC2}', '\u{1FC4}'), ('\u{1FC6}', '\u{1FCC}'), ('\u{1FD0}', '\u{1FD3}'),
    ('\u{1FD6}', '\u{1FDB}'), ('\u{1FE0}', '\u{1FEC}'), ('\u{1FF2}', '\u{1FF4}'), ('\u{1FF6}', '\u{1FFC}'),
    ('\u{2102}', '\u{2102}'), ('\u{2107}', '\u{2107}'), ('\u{210A}', '\u{2113}'), ('\u{2115}', '\u{2115}'),
    ('\u{2119}', '\u{211D}'), ('\u{2124}', '\u{2124}'), ('\u{2126}', '\u{2126}'), ('\u{2128}', '\u{2128}'),
    ('\u{212A}', '\u{212D}'), ('\u{212F}', '\u{2134}'), ('\u{2139}', '\u{2139}'), ('\u{213C}', '\u{213F}'),
    ('\u{2145}', '\u{2149}'), ('\u{214E}', '\u{214E}'), ('\u{2183}', '\u{2184}'), ('\u{2C00}', '\u{2C7B}'),
    ('\u{2C7E}', '\u{2CE4}'), ('\u{2CEB}', '\u{2CEE}'), ('\u{2CF2}', '\u{2CF3}'), ('\u{A640}', '\u{A66D}'),
    ('\u{A680}', '\u{A69B}'), ('\u{A722}', '\u{A76F}'), ('\u{A771}', '\u{A787}'), ('\u{A78B}', '\u{A78E}'),
    ('\u{AB70}', '\u{ABBF}'), ('\u{FB00}', '\u{FB06}'), ('\u{FB13}', '\u{FB17}'), ('\u{FF21}', '\u{FF3A}'),
    ('\u{FF41}', '\u{FF5A}'), ('\u{10400}', '\u{1044F}'), ('\u{104B0}', '\u{104D3}'),
    ('\u{104D8}', '\u{104FB}'), ('\u{10C80}', '\u{10CB2}'), ('\u{10CC0}', '\u{10CF2}'),
    ('\u{118A0}', '\u{118DF}'), ('\u{1E900}', '\u{1E943}'),
];
