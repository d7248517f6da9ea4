//! The types of metadata values, and their decoding from the file's bytes.

use std::fmt;

/// The type of a metadata value, with the format's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    pub(super) fn from_code(code: u32) -> Option<Self> {
        use ValueType::*;
        const ALL: [ValueType; 13] = [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Array, U64, I64, F64];
        ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::Str => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of a value of this type, or for strings and arrays the least that one takes.
    pub(super) fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Str => 8,
            Self::Array => 12,
        }
    }
}

/// One metadata value.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Bytes, not necessarily UTF-8.
    Str(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value<'_> {
    /// The value's type.
    pub fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The value of an integer of any width.
    pub fn integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The value of a float of either width, or of an integer.
    pub fn number(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => self.integer().map(|v| v as f64),
        }
    }

    pub(super) fn elem(&self) -> Option<ValueType> {
        if let Self::Array(a) = self { Some(a.ty) } else { None }
    }
}

/// An array value: a range of the file.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    pub(super) ty: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The elements' type.
    pub fn ty(&self) -> ValueType {
        self.ty
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> Elements<'a> {
        Elements { ty: self.ty, left: self.len, bytes: self.bytes }
    }

    /// The elements as they lie in the file.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.ty.name(), self.len)
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = Elements<'a>;

    fn into_iter(self) -> Elements<'a> {
        self.iter()
    }
}

/// The elements of an [`Array`].
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    ty: ValueType,
    left: usize,
    bytes: &'a [u8],
}

impl Elements<'_> {
    pub(super) fn ty(&self) -> ValueType {
        self.ty
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (value, rest) = decode(self.ty, self.bytes)?;
        self.bytes = rest;
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Elements<'_> {}

macro_rules! typed_elements {
    ($(#[$doc:meta])* $name:ident, $item:ty, $value:ident => $convert:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name<'a>(pub(super) Elements<'a>);

        impl<'a> Iterator for $name<'a> {
            type Item = $item;

            fn next(&mut self) -> Option<$item> {
                let $value = self.0.next()?;
                $convert
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.0.size_hint()
            }
        }

        impl ExactSizeIterator for $name<'_> {}
    };
}

typed_elements! {
    /// The strings of an array, as bytes: token texts need not be UTF-8.
    Strings, &'a [u8], value => if let Value::Str(s) = value { Some(s) } else { None }
}
impl<'a> Strings<'a> {
    /// Of `len` strings as they lie in a file.
    pub(super) fn of(bytes: &'a [u8], len: usize) -> Self {
        Self(Elements { ty: ValueType::Str, left: len, bytes })
    }
}
typed_elements! {
    /// The numbers of an array of floats.
    F32s, f32, value => value.number().map(|v| v as f32)
}
typed_elements! {
    /// The numbers of an array of integers of any width.
    I64s, i64, value => value.integer().and_then(|v| i64::try_from(v).ok())
}

/// A value of type `ty` and what follows it. `None` cannot occur for bytes that [`Meta`](super::Meta) has walked over when the file was
/// opened.
#[inline]
pub(super) fn decode(ty: ValueType, bytes: &[u8]) -> Option<(Value<'_>, &[u8])> {
    fn head<const N: usize>(bytes: &[u8]) -> Option<([u8; N], &[u8])> {
        bytes.split_first_chunk::<N>().map(|(head, rest)| (*head, rest))
    }
    macro_rules! number {
        ($variant:ident, $t:ty) => {{
            let (head, rest) = head(bytes)?;
            (Value::$variant(<$t>::from_le_bytes(head)), rest)
        }};
    }
    Some(match ty {
        ValueType::U8 => number!(U8, u8),
        ValueType::I8 => number!(I8, i8),
        ValueType::U16 => number!(U16, u16),
        ValueType::I16 => number!(I16, i16),
        ValueType::U32 => number!(U32, u32),
        ValueType::I32 => number!(I32, i32),
        ValueType::F32 => number!(F32, f32),
        ValueType::U64 => number!(U64, u64),
        ValueType::I64 => number!(I64, i64),
        ValueType::F64 => number!(F64, f64),
        ValueType::Bool => {
            let ([v], rest) = head(bytes)?;
            (Value::Bool(v != 0), rest)
        }
        ValueType::Str => {
            let (len, rest) = head(bytes)?;
            let (s, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(len)).ok()?)?;
            (Value::Str(s), rest)
        }
        ValueType::Array => {
            let (ty, rest) = head(bytes)?;
            let (len, rest) = head(rest)?;
            let ty = ValueType::from_code(u32::from_le_bytes(ty))?;
            let len = usize::try_from(u64::from_le_bytes(len)).ok()?;
            (Value::Array(Array { ty, len, bytes: rest }), &[])
        }
    })
}
