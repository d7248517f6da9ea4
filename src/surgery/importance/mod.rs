//! Importance data ("imatrix"): how large the inputs of each matrix are, column by column, on some text. An error of a
//! weight counts as much as the square of what it is multiplied by.
//!
//! Two kinds of files, both of llama.cpp. The GGUF form has for each matrix NAME, both in F32,
//!
//! ```text
//! NAME.in_sum2  [columns, matrices]   the sums of squares of the inputs
//! NAME.counts   [1, matrices]         how many inputs were summed
//! ```
//!
//! and says in `imatrix.datasets` and `imatrix.chunk_count` which text it saw, and how many pieces of it.
//!
//! More matrices than one are experts; where all see every input there is but one count. The older form is in `legacy.rs`.
//! Files are mapped; what is asked for is computed when it is asked for, so that memory stays small.

mod legacy;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::gguf::{self, File, Map, TensorInfo, printable};
use crate::kernel::format::GgmlType;

/// Why importance data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImportanceError {
    /// The file cannot be read, or breaks a rule of GGUF.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    /// It is neither form.
    #[error("{}: holds no importance data: neither a GGUF file nor the older form, which begins with a number of entries (this \
             with {n})", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// What would be the number of entries.
        n: i32,
    },
    /// A GGUF file of something else.
    #[error("{}: holds no importance data: no tensors NAME.in_sum2 and NAME.counts", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The older form ends within an entry.
    #[error("{}: cut short: {what} at byte {at} needs {need} bytes, the file has {size}", path.display())]
    Ends {
        /// The file.
        path: PathBuf,
        /// What is cut off.
        what: &'static str,
        /// Where it begins.
        at: u64,
        /// Bytes it takes.
        need: u64,
        /// Bytes of the file.
        size: u64,
    },
    /// A length of the older form cannot be one.
    #[error("{}: {what} is {value} at byte {at}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Of what.
        what: &'static str,
        /// The value.
        value: i32,
        /// Where it stands.
        at: u64,
    },
    /// The same matrix twice.
    #[error("{}: has two entries for {name}", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
        /// The matrix.
        name: String,
    },
    /// Sums without counts, or the other way round.
    #[error("{}: has {name}.{has} but no {name}.{lacks}", path.display())]
    Half {
        /// The file.
        path: PathBuf,
        /// The matrix.
        name: String,
        /// What there is.
        has: &'static str,
        /// What there is not.
        lacks: &'static str,
    },
    /// Sums and counts are F32.
    #[error("{}: tensor {tensor} is {ty}, must be F32", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: GgmlType,
    },
    /// Sums of several matrices that are not as many for each.
    #[error("{}: {name} has {sums} sums for {counts} counts", path.display())]
    Counts {
        /// The file.
        path: PathBuf,
        /// The matrix.
        name: String,
        /// Sums of squares.
        sums: usize,
        /// Counts.
        counts: usize,
    },
    /// A sum of squares or a count that is none.
    #[error("{}: {name}: {what} {at} is {value}, must be finite and not below 0", path.display())]
    Number {
        /// The file.
        path: PathBuf,
        /// The matrix.
        name: String,
        /// What the number is.
        what: &'static str,
        /// Which.
        at: usize,
        /// Its value.
        value: f32,
    },
    /// Data of a matrix of another shape.
    #[error("{}: {name} has {sums} sums{}, but the tensor {columns} columns{}: data of another model?", path.display(),
            many(*counts, " and", "counts"), many(*matrices, " in each of", "matrices"))]
    Shape {
        /// The file.
        path: PathBuf,
        /// The matrix.
        name: String,
        /// Sums of squares.
        sums: usize,
        /// Counts.
        counts: u64,
        /// Columns of the matrix.
        columns: u64,
        /// Matrices in the tensor.
        matrices: u64,
    },
}

/// A number worth a mention.
fn many(n: u64, before: &str, after: &str) -> String {
    if n > 1 { format!("{before} {n} {after}") } else { String::new() }
}

/// An open file of importance data.
pub struct Importance {
    source: Source,
    /// By the name of the matrix.
    entries: BTreeMap<String, Entry>,
    origin: Origin,
}

/// What a file says of where its data comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file of the text; of several the first.
    pub dataset: Option<String>,
    /// How many pieces of it were read, if any.
    pub chunks: Option<u32>,
}

enum Source {
    Gguf(File),
    Legacy(Map),
}

/// Where the data of a matrix lies.
enum Entry {
    /// Two of the file's tensors.
    Gguf {
        sums: usize,
        counts: usize,
    },
    Legacy(legacy::Entry),
}

/// What a column counts at least, as a part of the mean: that of one without any input is not known to be 0.
const LEAST: f64 = 1e-6;

impl Importance {
    /// Opens a file of either form and checks it: every number, every length.
    pub fn open(path: &Path) -> Result<Self, ImportanceError> {
        Self::from_map(Map::open(path)?)
    }

    /// Data that is already in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, ImportanceError> {
        Self::from_map(Map::from_bytes(bytes))
    }

    fn from_map(map: Map) -> Result<Self, ImportanceError> {
        let this = if map.starts_with(b"GGUF") {
            let file = File::from_map(map, false)?;
            let (entries, origin) = (pairs(&file)?, Origin::of(&file)?);
            Self { source: Source::Gguf(file), entries, origin }
        } else {
            let (entries, origin) = legacy::read(&map)?;
            let entries = entries.into_iter().map(|(k, v)| (k, Entry::Legacy(v))).collect();
            Self { source: Source::Legacy(map), entries, origin }
        };
        for (name, entry) in &this.entries {
            this.check(name, entry)?;
        }
        Ok(this)
    }

    /// Where it comes from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The file.
    pub fn path(&self) -> &Path {
        match &self.source {
            Source::Gguf(file) => file.path(),
            Source::Legacy(map) => map.path(),
        }
    }

    /// For how many matrices there is data.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none; never of a file that could be opened.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there is data for a matrix of this name.
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// What errors in each column of a tensor count: as many numbers as it has columns for each of its matrices, above 0,
    /// of mean 1 in each matrix. `None` if there is no data for it.
    pub fn of(&self, tensor: &TensorInfo) -> Result<Option<Vec<f32>>, ImportanceError> {
        let Some(entry) = self.entries.get(&tensor.name) else { return Ok(None) };
        let (sums, all_counts) = (self.sums(entry)?, self.counts(entry)?);
        let (columns, matrices) = (tensor.dims[0], tensor.dims[2] * tensor.dims[3]);
        let counts = all_counts.len() as u64;
        if columns * matrices != sums.len() as u64 || !(counts <= 1 || counts == matrices) {
            let (path, name) = (self.path().to_owned(), printable(tensor.name.as_bytes()));
            return Err(ImportanceError::Shape { path, name, sums: sums.len(), counts, columns, matrices });
        }
        let columns = columns as usize; // Not more than there are sums.
        let mut weights = Vec::with_capacity(sums.len());
        for (m, sums) in sums.chunks_exact(columns).enumerate() {
            let count = all_counts.get(m).or(all_counts.first()).map_or(1.0, |&bytes| number(bytes));
            let mean = sums.iter().map(|&bytes| f64::from(number(bytes))).sum::<f64>() / columns as f64;
            weights.extend(sums.iter().map(|&bytes| {
                // An expert that was never asked: nothing is known of its inputs.
                let known = mean > 0.0 && count >= 0.5;
                if known { (f64::from(number(bytes)) / mean).max(LEAST) as f32 } else { 1.0 }
            }));
        }
        Ok(Some(weights))
    }

    fn sums(&self, entry: &Entry) -> Result<&[[u8; 4]], ImportanceError> {
        Ok(match (entry, &self.source) {
            (Entry::Gguf { sums, .. }, Source::Gguf(file)) => numbers(file.data(&file.tensors()[*sums])?),
            (Entry::Legacy(entry), Source::Legacy(map)) => numbers(entry.sums(map)),
            // An entry is of its own source.
            _ => &[],
        })
    }

    /// None in the older form, where every sum was divided by its count.
    fn counts(&self, entry: &Entry) -> Result<&[[u8; 4]], ImportanceError> {
        Ok(match (entry, &self.source) {
            (Entry::Gguf { counts, .. }, Source::Gguf(file)) => numbers(file.data(&file.tensors()[*counts])?),
            _ => &[],
        })
    }

    fn check(&self, name: &str, entry: &Entry) -> Result<(), ImportanceError> {
        let (sums, counts) = (self.sums(entry)?, self.counts(entry)?);
        let (path, name) = (|| self.path().to_owned(), || printable(name.as_bytes()));
        for (what, all) in [("sum", sums), ("count", counts)] {
            let bad = |&value: &f32| !(value.is_finite() && value >= 0.0);
            if let Some((at, value)) =
                all.iter().map(|&b| number(b)).enumerate().find(|(_, value)| bad(value))
            {
                return Err(ImportanceError::Number { path: path(), name: name(), what, at, value });
            }
        }
        if !counts.is_empty() && !sums.len().is_multiple_of(counts.len()) {
            let (sums, counts) = (sums.len(), counts.len());
            return Err(ImportanceError::Counts { path: path(), name: name(), sums, counts });
        }
        Ok(())
    }
}

impl Origin {
    /// What the metadata of a GGUF file says.
    fn of(file: &File) -> Result<Self, ImportanceError> {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let dataset = file.meta().strings("imatrix.datasets")?.and_then(|mut all| all.next().map(text));
        Ok(Self { dataset, chunks: file.meta().u32("imatrix.chunk_count")?.filter(|&n| n > 0) })
    }
}

/// The pairs of tensors of a GGUF file.
fn pairs(file: &File) -> Result<BTreeMap<String, Entry>, ImportanceError> {
    const NAMES: [&str; 2] = ["in_sum2", "counts"];
    let mut found: BTreeMap<&str, [Option<usize>; 2]> = BTreeMap::new();
    for (at, tensor) in file.tensors().iter().enumerate() {
        let Some((name, what)) = tensor.name.rsplit_once('.') else { continue };
        let Some(k) = NAMES.iter().position(|&known| known == what) else { continue };
        if tensor.ty != GgmlType::F32 {
            let (path, tensor, ty) = (file.path().to_owned(), printable(tensor.name.as_bytes()), tensor.ty);
            return Err(ImportanceError::Type { path, tensor, ty });
        }
        found.entry(name).or_default()[k] = Some(at);
    }
    if found.is_empty() {
        return Err(ImportanceError::Empty { path: file.path().to_owned() });
    }
    let entry = |(name, pair): (&str, [Option<usize>; 2])| match pair {
        [Some(sums), Some(counts)] => Ok((name.to_owned(), Entry::Gguf { sums, counts })),
        [sums, _] => {
            let (has, lacks) = if sums.is_some() { (NAMES[0], NAMES[1]) } else { (NAMES[1], NAMES[0]) };
            let (path, name) = (file.path().to_owned(), printable(name.as_bytes()));
            Err(ImportanceError::Half { path, name, has, lacks })
        }
    };
    found.into_iter().map(entry).collect()
}

fn numbers(bytes: &[u8]) -> &[[u8; 4]] {
    bytes.as_chunks::<4>().0
}

fn number(bytes: [u8; 4]) -> f32 {
    f32::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests;
