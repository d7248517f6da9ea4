//! Packing with importance data: errors move to where they count less, and data that does not fit is refused.

mod common;

use std::path::{Path, PathBuf};

use common::place::{Place, good, refused, twinband};
use common::tiny::{Plain, Tiny, encode};
use twinband::g2bx;
use twinband::gguf::Value;
use twinband::gguf::write::Writer;
use twinband::kernel::format::{self, GgmlType, Matrix};

fn model() -> Tiny {
    Tiny::new().format(encode::f32).with(|t| {
        t.dim = 256;
        t.hidden_dim = 512;
        t.n_layers = 2;
        t.head_dim = 64;
    })
}

/// Matrices in a tensor of experts.
const EXPERTS: usize = 3;

/// One column in eight has inputs a hundred times as large.
fn sums(columns: usize) -> Vec<f32> {
    (0..columns).map(|c| if c % 8 == 3 { 10_000.0 } else { 1.0 }).collect()
}

/// Data in the GGUF form for these matrices: name and sums.
fn data(path: &Path, matrices: &[(String, Vec<f32>)]) {
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let mut writer = Writer::new();
    writer.strings("imatrix.datasets", &["some.txt", "more.txt"]).u32("imatrix.chunk_count", 12);
    for (name, sums) in matrices {
        let columns = sums.len() as u64;
        let n = if name.contains("exps") { EXPERTS as u64 } else { 1 };
        writer.tensor(&format!("{name}.in_sum2"), &[columns / n, n], GgmlType::F32).expect("a tensor");
        writer.tensor(&format!("{name}.counts"), &[1, n], GgmlType::F32).expect("a tensor");
    }
    let mut file = Vec::new();
    let mut data = writer.begin(&mut file).expect("memory");
    for (name, sums) in matrices {
        data.part(&bytes(sums)).expect("memory");
        data.part(&bytes(&[5.0; EXPERTS][..if name.contains("exps") { EXPERTS } else { 1 }]))
            .expect("memory");
    }
    data.finish().expect("memory");
    std::fs::write(path, file).expect("the file");
}

/// The same in the older form.
fn older(path: &Path, matrices: &[(String, Vec<f32>)]) {
    let int = |n: usize| (n as i32).to_le_bytes();
    let mut file = int(matrices.len()).to_vec();
    for (name, sums) in matrices {
        file.extend(int(name.len()));
        file.extend(name.as_bytes());
        file.extend(int(9));
        file.extend(int(sums.len()));
        file.extend(sums.iter().flat_map(|v| v.to_le_bytes()));
    }
    file.extend(int(9));
    std::fs::write(path, file).expect("the file");
}

/// The bytes of all tensors.
fn weights(path: &Path) -> Vec<u8> {
    let file = g2bx::open(path).expect("a model");
    file.tensors().iter().flat_map(|t| file.data(t).expect("data").to_vec()).collect()
}

fn matrices(tiny: &Tiny) -> Vec<(String, Vec<f32>)> {
    let blocks = |t: &&Plain| t.is_matrix() && t.name.starts_with("blk.");
    tiny.weights().iter().filter(blocks).map(|t| (t.name.clone(), sums(t.dims[0] as usize))).collect()
}

/// The squared errors of all blocks' matrices, in the columns of large inputs and in the others.
fn errors(tiny: &Tiny, packed: &Path) -> [f64; 2] {
    let file = g2bx::open(packed).expect("a G2BX");
    let mut errors = [0.0; 2];
    for plain in tiny.weights().iter().filter(|t| t.is_matrix() && t.name.starts_with("blk.")) {
        let tensor = file.tensor(&plain.name).expect("the tensor");
        let (format, cols) = (format::of(tensor.ty).expect("a format"), plain.dims[0] as usize);
        let matrix = Matrix::new(format, file.data(tensor).expect("data"), plain.dims[1] as usize, cols);
        let matrix = matrix.and_then(|m| m.with_layout(tensor.layout)).expect("a matrix");
        let mut row = vec![0.0; cols];
        for (r, plain) in plain.values.chunks(cols).enumerate() {
            matrix.decode_row(r, &mut row);
            for (c, (x, y)) in plain.iter().zip(&row).enumerate() {
                errors[usize::from(c % 8 != 3)] += f64::from(x - y).powi(2);
            }
        }
    }
    errors
}

#[test]
fn errors_move_to_columns_of_small_inputs() {
    let tiny = model();
    let place = Place::new(&tiny);
    let (new, old) = (place.path("data.gguf"), place.path("data.dat"));
    data(&new, &matrices(&tiny));
    older(&old, &matrices(&tiny));
    for ty in ["IQ3_S", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q5_1", "IQ4_NL", "IQ4_XS", "Q4_0S"] {
        let packed = |name: &str, data: Option<&PathBuf>| {
            let mut options: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"--type", &ty, &"--force", &"--pure"];
            if let Some(data) = data {
                options.extend([&"--imatrix" as &dyn AsRef<_>, data]);
            }
            place.packed(name, &options)
        };
        let (with, without) = (packed("with.g2bx", Some(&new)), packed("without.g2bx", None));
        let ([large, small], [large_without, small_without]) =
            (errors(&tiny, &with), errors(&tiny, &without));
        assert!(large < 0.9 * large_without, "{ty}: {large} of {large_without}");
        assert!(small > small_without, "{ty}: {small} of {small_without}");
        let of_old = packed("old.g2bx", Some(&old));
        assert!(weights(&of_old) == weights(&with), "{ty}");
    }
}

/// A tensor of three matrices, of which each has large inputs in columns of its own.
#[test]
fn experts_are_weighed_by_themselves() {
    const NAME: &str = "blk.0.ffn_down_exps.weight";
    let (cols, rows) = (256, 8);
    let values: Vec<f32> =
        (0..cols * rows * EXPERTS).map(|i| ((i * i % 1009) as f32 / 504.0 - 1.0).powi(3)).collect();
    let dims = [cols as u64, rows as u64, EXPERTS as u64];
    let tiny = model().tensor(NAME, &dims, values.clone());
    let place = Place::new(&tiny);
    let path = place.path("data.gguf");
    let mut all = matrices(&tiny);
    let large = |expert: usize, c: usize| c % 8 == expert;
    let sums = (0..EXPERTS).flat_map(|e| (0..cols).map(move |c| if large(e, c) { 1e4 } else { 1.0 }));
    all.push((NAME.to_owned(), sums.collect()));
    data(&path, &all);
    let errors = |options: &[&dyn AsRef<std::ffi::OsStr>]| -> Vec<f64> {
        let file = g2bx::open(&place.packed("a.g2bx", options)).expect("a G2BX");
        let tensor = file.tensor(NAME).expect("the tensor");
        assert_eq!(tensor.ty, GgmlType::Q4_K);
        let mut got = vec![0.0; values.len()];
        (format::of(tensor.ty).expect("a format").decode)(file.data(tensor).expect("data"), &mut got);
        let of = |e: usize| {
            let part = e * rows * cols..(e + 1) * rows * cols;
            let pairs = values[part.clone()].iter().zip(&got[part]).enumerate();
            pairs.filter(|(i, _)| large(e, i % cols)).map(|(_, (x, y))| f64::from(x - y).powi(2)).sum()
        };
        (0..EXPERTS).map(of).collect()
    };
    let without = errors(&[&"--type", &"Q4_K_S", &"--force"]);
    let with = errors(&[&"--type", &"Q4_K_S", &"--force", &"--imatrix", &path]);
    for (with, without) in with.iter().zip(&without) {
        assert!(*with < 0.8 * without, "{with} of {without}");
    }
}

/// What llama.cpp collected for a layer of a real model, in both of its forms: the same weights.
#[test]
fn both_forms_of_real_data_give_the_same_weights() {
    let layer = Tiny::new().format(encode::f32).with(|t| {
        t.dim = 576;
        t.hidden_dim = 1536;
        t.n_heads = 9;
        t.n_kv_heads = 3;
        t.head_dim = 64;
        t.n_layers = 1;
    });
    let place = Place::new(&layer);
    let data = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/imatrix").join(name);
    // Rows of 576 are whole blocks of the first two, those of 1536 of all.
    for ty in ["Q4_0", "IQ4_NL", "Q3_K", "IQ3_XXS", "IQ2_S"] {
        let packed = |name: &str, more: &[&dyn AsRef<std::ffi::OsStr>]| {
            let options: [&dyn AsRef<std::ffi::OsStr>; 5] = [&"--type", &ty, &"--pure", &"--force", &"-q"];
            weights(&place.packed(name, &[&options[..], more].concat()))
        };
        let new = packed("a.g2bx", &[&"--imatrix", &data("layer0.gguf")]);
        let old = packed("b.g2bx", &[&"--imatrix", &data("layer0.dat")]);
        // Of the latter the means were rounded: where two choices are as good as each other it may take the other one.
        let differ = new.iter().zip(&old).filter(|(a, b)| a != b).count();
        assert!(new.len() == old.len() && differ * 1000 <= new.len(), "{ty}: {differ} of {}", new.len());
        let without = packed("c.g2bx", &[]);
        let changed = new.iter().zip(&without).filter(|(a, b)| a != b).count();
        assert!(changed * 20 > new.len(), "{ty}: only {changed} of {}", new.len());
    }
}

/// The keys and types are those of `llama-quantize`.
#[test]
fn a_file_says_by_which_data_it_was_converted() {
    let tiny = model().put("quantize.imatrix.file", |writer, key| {
        writer.str(key, "an earlier one");
    });
    let place = Place::new(&tiny);
    let (new, old) = (place.path("data.gguf"), place.path("data.dat"));
    data(&new, &matrices(&tiny));
    older(&old, &matrices(&tiny));
    let said = |path: &Path| -> Vec<(String, String)> {
        let file = g2bx::open(path).expect("a model");
        let keys = file.meta().iter().filter(|(key, _)| key.starts_with("quantize."));
        let shown = |value: Value<'_>| match value {
            Value::Str(text) => String::from_utf8_lossy(text).into_owned(),
            other => format!("{other:?}"),
        };
        keys.map(|(key, value)| (key.to_owned(), shown(value))).collect()
    };
    let expected = |file: &Path, rest: &[(&str, &str)]| -> Vec<(String, String)> {
        let file = ("quantize.imatrix.file", &*file.to_string_lossy());
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        [&[file][..], rest].concat().iter().map(owned).collect()
    };
    let packed = place.packed("a.g2bx", &[&"--type", &"Q4_K", &"--imatrix", &new]);
    let entries = ("quantize.imatrix.entries_count", "U32(14)");
    let want =
        [("quantize.imatrix.dataset", "some.txt"), entries, ("quantize.imatrix.chunks_count", "U32(12)")];
    assert_eq!(said(&packed), expected(&new, &want));
    let again = place.path("again.gguf");
    good(&twinband(&[&"unpack", &packed, &again]));
    assert_eq!(said(&again), expected(&new, &want));
    // Data that does not say which text it saw; and none, which changes nothing of what was there.
    let packed = place.packed("b.g2bx", &[&"--type", &"Q4_K", &"--imatrix", &old]);
    assert_eq!(said(&packed), expected(&old, &[entries, ("quantize.imatrix.chunks_count", "U32(9)")]));
    let packed = place.packed("c.g2bx", &[&"--type", &"Q4_K"]);
    assert_eq!(said(&packed), expected(Path::new("an earlier one"), &[]));
}

#[test]
fn data_that_does_not_fit_is_refused() {
    let tiny = model();
    let place = Place::new(&tiny);
    let (path, out) = (place.path("data.gguf"), place.path("a.g2bx"));
    let pack = |more: &[&str]| {
        let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"pack", &place.source, &out, &"--imatrix", &path];
        args.extend(more.iter().map(|s| s as &dyn AsRef<_>));
        twinband(&args)
    };

    let mut all = matrices(&tiny);
    all[2].1.pop();
    data(&path, &all);
    let said = refused(&pack(&["--type", "Q4_K"]));
    assert!(said.contains("blk.0.") && said.contains("data of another model?"), "{said}");

    let mut all = matrices(&tiny);
    all[1].1[5] = f32::NAN;
    data(&path, &all);
    assert!(refused(&pack(&["--type", "Q4_K"])).contains("sum 5 is NaN"));

    let other: Vec<_> =
        matrices(&tiny).into_iter().map(|(name, sums)| (format!("model.{name}"), sums)).collect();
    data(&path, &other);
    let said = refused(&pack(&["--type", "Q4_K"]));
    assert!(said.contains("has data of 14 matrices, but of none that is converted"), "{said}");
    assert!(!out.exists());

    // Some without data are converted without.
    let some: Vec<_> = matrices(&tiny).into_iter().filter(|(name, _)| !name.contains("attn_q")).collect();
    data(&path, &some);
    let output = pack(&["--type", "Q4_K"]);
    good(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("has no data of 2 tensors: blk.0.attn_q.weight, blk.1.attn_q.weight;"), "{said}");

    // Data that nothing is done with is a mistake.
    for options in [&[][..], &["--keep"], &["--type", "Q8_0"]] {
        let output = pack(options);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("--imatrix has a use where matrices become one of Q4_0, "), "{said}");
    }
}
