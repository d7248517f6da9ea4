//! Arrays of metadata to be read at any position for as long as one likes: they hold on to the file, not to a borrow of it,
//! and copy nothing.

use std::ops::Range;
use std::sync::Arc;

use super::map::Map;
use super::value::{Strings, Value, ValueType, decode};

/// Bytes of an array's element type and length, which its elements follow.
const ARRAY_HEAD: usize = 4 + 8;

/// A range of a file.
#[derive(Clone)]
pub(super) struct Span {
    pub map: Arc<Map>,
    pub range: Range<usize>,
}

impl Span {
    /// The elements of an array value that [`Meta`](super::Meta) has checked.
    pub fn elements(map: &Arc<Map>, value: Range<usize>) -> Self {
        Self { map: Arc::clone(map), range: value.start + ARRAY_HEAD..value.end }
    }

    fn bytes(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }
}

/// An array of strings.
pub(crate) struct Texts {
    span: Span,
    len: usize,
}

impl Texts {
    pub(super) fn new(span: Span, len: usize) -> Self {
        Self { span, len }
    }

    /// The number of strings.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether positions are of use: they are 32 bits wide.
    pub fn has_positions(&self) -> bool {
        u32::try_from(self.span.range.len()).is_ok()
    }

    /// All strings in order, each with its position.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, &[u8])> {
        let mut at = 0;
        Strings::of(self.span.bytes(), self.len).map(move |text| {
            let start = at;
            at += (8 + text.len()) as u32;
            (start, text)
        })
    }

    /// The string at a position that [`iter`](Self::iter) gave; empty if somebody has written to the file since.
    #[inline]
    pub fn at(&self, position: u32) -> &[u8] {
        let string = || {
            let (len, rest) = self.span.bytes().get(position as usize..)?.split_first_chunk()?;
            rest.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?)
        };
        string().unwrap_or_default()
    }
}

/// An array of numbers.
pub(crate) struct Numbers {
    span: Span,
    ty: ValueType,
    len: usize,
}

impl Numbers {
    /// `ty` is that of the elements.
    pub(super) fn new(span: Span, ty: ValueType, len: usize) -> Self {
        Self { span, ty, len }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Option<Value<'_>> {
        let start = index.checked_mul(self.ty.min_bytes() as usize)?;
        decode(self.ty, self.span.bytes().get(start..)?).map(|(value, _)| value)
    }

    /// An integer up to 2^63 - 1; `None` for any other element and beyond the end.
    #[inline]
    pub fn integer(&self, index: usize) -> Option<i64> {
        if self.ty == ValueType::I32 {
            let bytes = self.span.bytes().as_chunks().0.get(index)?;
            return Some(i32::from_le_bytes(*bytes).into());
        }
        self.get(index)?.integer().and_then(|v| i64::try_from(v).ok())
    }

    /// A float of either width; `None` for any other element and beyond the end.
    #[inline]
    pub fn float(&self, index: usize) -> Option<f32> {
        match self.get(index)? {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::write::{WriteError, Writer};
    use super::super::{File, Value};

    #[test]
    fn elements_by_position() {
        let texts = [&b"a\0b"[..], b"", b"\xff", b"long enough to be found"];
        let mut writer = Writer::new();
        writer.strings("s", &texts).f32s("f", &[0.5, f32::NAN]).i32s("i", &[-7, 5]);
        let bytes = writer.begin(Vec::new()).and_then(|w| w.finish());
        let file = bytes.map_err(|e: WriteError| e.to_string()).map(|b| File::from_bytes(b).expect("good"));
        let file = file.expect("written");
        let strings = file.meta().texts("s").ok().flatten().expect("an array of strings");
        let floats = file.meta().floats("f").ok().flatten().expect("an array of floats");
        let ints = file.meta().integers("i").ok().flatten().expect("an array of integers");
        assert!(file.meta().texts("i").is_err() && file.meta().floats("i").is_err());
        assert!(
            file.meta().integers("f").is_err() && file.meta().integers("none").is_ok_and(|n| n.is_none())
        );
        assert!(matches!(file.meta().get("i"), Some(Value::Array(_))));
        drop(file);
        let found: Vec<(u32, &[u8])> = strings.iter().collect();
        assert_eq!(found, [(0, texts[0]), (11, texts[1]), (19, texts[2]), (28, texts[3])]);
        assert!(found.iter().all(|&(at, text)| strings.at(at) == text));
        assert_eq!((strings.len(), strings.at(60), strings.at(u32::MAX)), (4, &b""[..], &b""[..]));
        assert_eq!((floats.float(0), floats.float(2), floats.integer(0)), (Some(0.5), None, None));
        assert!(floats.float(1).is_some_and(f32::is_nan));
        assert_eq!((ints.integer(0), ints.integer(1), ints.integer(2)), (Some(-7), Some(5), None));
        assert_eq!((floats.len(), ints.len()), (2, 2));
    }
}
