//! Metadata: typed values that stay where they are in the file.
//!
//! The walk over the header checks every value once and notes where it lies; nothing is copied. What a getter
//! hands out is decoded from the file's bytes at that moment, without regard to alignment.

use std::ops::Range;
use std::sync::Arc;

use super::column::{Numbers, Span, Texts};
use super::cursor::Cursor;
use super::error::{Error, Fault, MetaError, printable};
use super::header::limited;
use super::map::Map;
use super::value::{Array, F32s, I64s, Strings, Value, ValueType, decode};
use super::write::{WriteError, Writer};

/// The longest metadata key, in bytes (the format's own limit).
const KEY_LIMIT: u64 = 65535;

/// All metadata of a file.
pub struct Meta {
    map: Arc<Map>,
    /// In file order.
    entries: Vec<Entry>,
    /// Positions in `entries`, sorted by key.
    by_key: Vec<u32>,
}

struct Entry {
    key: Range<usize>,
    ty: ValueType,
    value: Range<usize>,
}

/// The fewest bytes of an entry: a key of one byte, the type, a value of one byte.
const MIN_ENTRY: u64 = 8 + 1 + 4 + 1;

impl Meta {
    /// Reads the number of entries of a header.
    pub(crate) fn count(cursor: &mut Cursor<'_>) -> Result<usize, Fault> {
        limited(cursor.count(MIN_ENTRY, "metadata keys")?, "metadata keys")
    }

    /// Walks over `n` entries at the cursor, which is at the start of `map`'s metadata, checking each.
    pub(crate) fn parse(map: &Arc<Map>, cursor: &mut Cursor<'_>, n: usize) -> Result<Self, Fault> {
        let mut entries = Vec::with_capacity(n);
        for _ in 0..n {
            let key = cursor.name(KEY_LIMIT, "metadata key")?;
            let key_end = cursor.at();
            let code = cursor.u32("a value type")?;
            let ty = ValueType::from_code(code)
                .ok_or_else(|| Fault::ValueType { key: printable(key.as_bytes()), code })?;
            let start = cursor.at();
            check_value(cursor, key, ty)?;
            entries.push(Entry { key: key_end - key.len()..key_end, ty, value: start..cursor.at() });
        }
        // By bytes, which is the order of the strings too, without asking again whether they are UTF-8.
        let bytes: &[u8] = map;
        let key = |i: &u32| &bytes[entries[*i as usize].key.clone()];
        let mut by_key: Vec<u32> = (0..n as u32).collect();
        by_key.sort_unstable_by(|a, b| key(a).cmp(key(b)));
        if let Some(pair) = by_key.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
            return Err(Fault::DuplicateKey { key: printable(key(&pair[0])) });
        }
        Ok(Self { map: Arc::clone(map), entries, by_key })
    }

    /// What a writer was given, as a file of these entries would have it.
    pub(crate) fn of(writer: &Writer) -> Result<Self, WriteError> {
        let (bytes, n) = writer.metadata()?;
        let map = Arc::new(Map::from_bytes(bytes.to_vec()));
        Ok(Self::parse(&map, &mut Cursor::new(&map), n)?)
    }

    fn key(&self, entry: &Entry) -> &str {
        // Checked to be UTF-8 when the entry was made.
        str::from_utf8(&self.map[entry.key.clone()]).unwrap_or_default()
    }

    fn value(&self, entry: &Entry) -> Option<Value<'_>> {
        decode(entry.ty, &self.map[entry.value.clone()]).map(|(value, _)| value)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.entries.iter().filter_map(|e| Some((self.key(e), self.value(e)?)))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.value(self.entry(key)?)
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        let bytes: &[u8] = &self.map;
        let of = |i: &u32| &bytes[self.entries[*i as usize].key.clone()];
        let at = self.by_key.binary_search_by(|i| of(i).cmp(key.as_bytes())).ok()?;
        Some(&self.entries[self.by_key[at] as usize])
    }

    /// A count: an integer of any width, not negative.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, Error> {
        Ok(self.unsigned(key, u64::MAX, "an integer from 0 to 18446744073709551615")?)
    }

    /// A count of at most 2^32 - 1: an integer of any width, not negative.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        let value = self.unsigned(key, u32::MAX.into(), "an integer from 0 to 4294967295")?;
        Ok(value.map(|v| v as u32))
    }

    pub(super) fn unsigned(
        &self,
        key: &str,
        max: u64,
        expected: &'static str,
    ) -> Result<Option<u64>, MetaError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let int = value.integer().ok_or_else(|| wrong(key, expected, &value))?;
        match u64::try_from(int) {
            Ok(v) if v <= max => Ok(Some(v)),
            _ => Err(MetaError::OutOfRange { key: key.to_owned(), expected, value: int.to_string() }),
        }
    }

    /// A count that may differ from layer to layer: element `index` of an array, or the one value that holds for
    /// every index. An array that is too short is an error.
    pub fn u64_at(&self, key: &str, index: usize) -> Result<Option<u64>, Error> {
        let Some(Value::Array(array)) = self.get(key) else { return self.u64(key) };
        let expected = "an integer for every layer, none negative";
        let int = match array.iter().nth(index) {
            Some(value) => value.integer().ok_or_else(|| wrong(key, expected, &Value::Array(array)))?,
            None => {
                let value = format!("only {} elements", array.len());
                return Err(MetaError::OutOfRange { key: key.to_owned(), expected, value }.into());
            }
        };
        let negative = |_| MetaError::OutOfRange { key: key.to_owned(), expected, value: int.to_string() };
        Ok(Some(u64::try_from(int).map_err(negative)?))
    }

    /// A finite number: a float of either width, or an integer.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        let expected = "a finite number";
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.number().ok_or_else(|| wrong(key, expected, &value))? as f32;
        if !number.is_finite() {
            let value = number.to_string();
            return Err(MetaError::OutOfRange { key: key.to_owned(), expected, value }.into());
        }
        Ok(Some(number))
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(v)),
            Some(value) => Err(wrong(key, "a bool", &value).into()),
        }
    }

    /// A text.
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Str(bytes)) => match str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(MetaError::NotUtf8 { key: key.to_owned() }.into()),
            },
            Some(value) => Err(wrong(key, "a string", &value).into()),
        }
    }

    /// An array of strings, as bytes.
    pub fn strings(&self, key: &str) -> Result<Option<Strings<'_>>, Error> {
        let array = self.array(key, "an array of strings", |ty| ty == ValueType::Str)?;
        Ok(array.map(|a| Strings(a.iter())))
    }

    /// As [`strings`](Self::strings), to be read at any position.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Texts>, Error> {
        let Some(strings) = self.strings(key)? else { return Ok(None) };
        Ok(self.span(key).map(|span| Texts::new(span, strings.len())))
    }

    /// As [`f32s`](Self::f32s), to be read at any position.
    pub(crate) fn floats(&self, key: &str) -> Result<Option<Numbers>, Error> {
        Ok(self.f32s(key)?.and_then(|numbers| self.numbers(key, numbers.0.ty(), numbers.len())))
    }

    /// As [`i64s`](Self::i64s), to be read at any position.
    pub(crate) fn integers(&self, key: &str) -> Result<Option<Numbers>, Error> {
        Ok(self.i64s(key)?.and_then(|numbers| self.numbers(key, numbers.0.ty(), numbers.len())))
    }

    fn numbers(&self, key: &str, ty: ValueType, len: usize) -> Option<Numbers> {
        self.span(key).map(|span| Numbers::new(span, ty, len))
    }

    /// Where the elements of an array lie.
    fn span(&self, key: &str) -> Option<Span> {
        Some(Span::elements(&self.map, self.entry(key)?.value.clone()))
    }

    /// An array of floats of either width; the numbers need not be finite.
    pub fn f32s(&self, key: &str) -> Result<Option<F32s<'_>>, Error> {
        let float = |ty| matches!(ty, ValueType::F32 | ValueType::F64);
        Ok(self.array(key, "an array of floats", float)?.map(|a| F32s(a.iter())))
    }

    /// An array of integers of any width, all at most 2^63 - 1.
    pub fn i64s(&self, key: &str) -> Result<Option<I64s<'_>>, Error> {
        use ValueType::*;
        let expected = "an array of integers up to 9223372036854775807";
        let integer = |ty| matches!(ty, U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64);
        let Some(array) = self.array(key, expected, integer)? else { return Ok(None) };
        if array.ty == U64 {
            let big = array.iter().find_map(|v| v.integer().filter(|&v| i64::try_from(v).is_err()));
            if let Some(big) = big {
                let value = big.to_string();
                return Err(MetaError::OutOfRange { key: key.to_owned(), expected, value }.into());
            }
        }
        Ok(Some(I64s(array.iter())))
    }

    fn array(
        &self,
        key: &str,
        expected: &'static str,
        accept: impl Fn(ValueType) -> bool,
    ) -> Result<Option<Array<'_>>, MetaError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) if accept(array.ty) => Ok(Some(array)),
            Some(value) => Err(wrong(key, expected, &value)),
        }
    }
}

fn wrong(key: &str, expected: &'static str, found: &Value<'_>) -> MetaError {
    MetaError::wrong_type(key, expected, found.ty(), found.elem())
}

/// Moves over one value, checking everything that [`decode`] relies on.
fn check_value(cursor: &mut Cursor<'_>, key: &str, ty: ValueType) -> Result<(), Fault> {
    let shown = || printable(key.as_bytes());
    match ty {
        ValueType::Str => {
            // Readers that keep strings as C does would see another value than we.
            if cursor.string("a string value")?.contains(&0) {
                return Err(Fault::Nul { what: "the string of metadata key", name: shown() });
            }
        }
        ValueType::Bool => check_bool(cursor, key)?,
        ValueType::Array => {
            let code = cursor.u32("an array's element type")?;
            let elem = ValueType::from_code(code).ok_or_else(|| Fault::ValueType { key: shown(), code })?;
            if elem == ValueType::Array {
                return Err(Fault::Nested { key: shown() });
            }
            let n = cursor.count(elem.min_bytes(), "array elements")?;
            match elem {
                // Texts of tokens are bytes: real vocabularies have a token for every byte, NUL included.
                ValueType::Str => (0..n).try_for_each(|_| cursor.string("a string of an array").map(drop))?,
                ValueType::Bool => (0..n).try_for_each(|_| check_bool(cursor, key))?,
                _ => drop(cursor.take(n as u64 * elem.min_bytes(), "an array")?),
            }
        }
        _ => drop(cursor.take(ty.min_bytes(), "a value")?),
    }
    Ok(())
}

fn check_bool(cursor: &mut Cursor<'_>, key: &str) -> Result<(), Fault> {
    match cursor.take(1, "a bool")? {
        [0 | 1] => Ok(()),
        other => {
            Err(Fault::Bool { key: printable(key.as_bytes()), value: other.first().copied().unwrap_or(0) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::File;
    use super::*;

    fn file(fill: impl FnOnce(&mut Writer) -> &mut Writer) -> File {
        let mut writer = Writer::new();
        fill(&mut writer);
        let bytes = writer.begin(Vec::new()).and_then(|w| w.finish());
        bytes
            .map_err(|e: WriteError| e.to_string())
            .and_then(|b| File::from_bytes(b).map_err(|e| e.to_string()))
            .expect("the file is a good one")
    }

    fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
        result.expect_err("the value must be refused").to_string()
    }

    #[test]
    fn counts_of_any_width_and_sign() {
        let good = [
            Value::U8(7),
            Value::I8(7),
            Value::U16(7),
            Value::I16(7),
            Value::U32(7),
            Value::I32(7),
            Value::U64(7),
            Value::I64(7),
        ];
        for value in good {
            let file = file(|w| w.value("n", value));
            assert_eq!(file.meta().u64("n").ok(), Some(Some(7)), "{value:?}");
            assert_eq!(file.meta().u32("n").ok(), Some(Some(7)), "{value:?}");
        }
        for (value, found) in [
            (Value::I8(-1), "found -1"),
            (Value::I64(i64::MIN), "found -9223372036854775808"),
            (Value::F32(7.0), "found f32"),
            (Value::Str(b"7"), "found string"),
            (Value::Bool(true), "found bool"),
        ] {
            let text = message(file(|w| w.value("n", value)).meta().u64("n"));
            assert!(text.contains("key n:") && text.contains(found), "{text}");
        }
        let big = file(|w| w.value("n", Value::U64(1 << 32)));
        assert_eq!(big.meta().u64("n").ok(), Some(Some(1 << 32)));
        assert!(message(big.meta().u32("n")).contains("found 4294967296"));
        assert_eq!(big.meta().u64("absent").ok(), Some(None));
    }

    #[test]
    fn numbers_must_be_finite() {
        for (value, number) in [(Value::F32(0.5), 0.5), (Value::F64(-0.25), -0.25), (Value::U32(10000), 1e4)]
        {
            assert_eq!(file(|w| w.value("x", value)).meta().f32("x").ok(), Some(Some(number)));
        }
        for value in [Value::F32(f32::NAN), Value::F32(f32::INFINITY), Value::F64(1e300)] {
            let text = message(file(|w| w.value("x", value)).meta().f32("x"));
            assert!(text.contains("finite"), "{text}");
        }
    }

    #[test]
    fn arrays_by_type() {
        let f = file(|w| {
            w.strings("s", &[&b"a\0b"[..], b"", b"\xff"])
                .f32s("f", &[1.0, f32::INFINITY])
                .i32s("i", &[-1, 5]);
            w.value("one", Value::U16(9))
        });
        let strings = f.meta().strings("s").ok().flatten().expect("an array of strings");
        assert_eq!(strings.len(), 3);
        // A token may be any bytes.
        assert_eq!(strings.collect::<Vec<_>>(), [&b"a\0b"[..], b"", b"\xff"]);
        let floats = f.meta().f32s("f").ok().flatten().expect("an array of floats");
        assert_eq!(floats.collect::<Vec<_>>(), [1.0, f32::INFINITY]);
        let ints = f.meta().i64s("i").ok().flatten().expect("an array of integers");
        assert_eq!(ints.collect::<Vec<_>>(), [-1, 5]);

        assert!(message(f.meta().strings("f")).contains("found an array of f32"));
        assert!(message(f.meta().f32s("i")).contains("found an array of i32"));
        assert!(message(f.meta().i64s("one")).contains("found u16"));
        assert!(message(f.meta().str("s")).contains("found an array of string"));

        assert_eq!(f.meta().u64_at("i", 1).ok(), Some(Some(5)));
        assert!(message(f.meta().u64_at("i", 0)).contains("found -1"));
        assert!(message(f.meta().u64_at("i", 2)).contains("only 2 elements"));
        assert_eq!(f.meta().u64_at("one", 77).ok(), Some(Some(9)));
    }

    #[test]
    fn texts_must_be_utf8() {
        let f = file(|w| w.str("good", "ä").value("bad", Value::Str(b"\xff")));
        assert_eq!(f.meta().str("good").ok(), Some(Some("ä")));
        assert_eq!(f.meta().get("bad"), Some(Value::Str(b"\xff")));
        assert!(message(f.meta().str("bad")).contains("not UTF-8"));
    }

    #[test]
    fn keeps_file_order() {
        let f = file(|w| w.u32("z", 1).u32("a", 2).bool("m", true));
        assert_eq!(f.meta().iter().map(|(key, _)| key).collect::<Vec<_>>(), ["z", "a", "m"]);
        assert_eq!(f.meta().bool("m").ok(), Some(Some(true)));
        assert!(message(f.meta().bool("z")).contains("expected a bool, found u32"));
    }
}
