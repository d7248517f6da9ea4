use super::*;
use crate::gguf::write::Writer;
use crate::kernel::format::GgmlType;
use proptest::prelude::*;

/// A tensor `a` of so many columns and matrices.
fn tensor(columns: u64, matrices: u64) -> TensorInfo {
    TensorInfo::new("a", [columns, 3, matrices, 1], 3, GgmlType::F32, 0, 0).expect("a small tensor")
}

/// A GGUF file of these tensors: name, dimensions, numbers.
fn gguf(tensors: &[(&str, &[u64], &[f32])]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.value("general.type", crate::gguf::Value::Str(b"imatrix"));
    for (name, dims, _) in tensors {
        writer.tensor(name, dims, GgmlType::F32).expect("a tensor");
    }
    let mut bytes = Vec::new();
    let mut data = writer.begin(&mut bytes).expect("memory");
    for (.., values) in tensors {
        data.part(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).expect("memory");
    }
    data.finish().expect("memory");
    bytes
}

/// The older form of these entries: name, calls, numbers.
fn legacy(entries: &[(&str, i32, &[f32])]) -> Vec<u8> {
    let mut bytes = (entries.len() as i32).to_le_bytes().to_vec();
    for (name, calls, values) in entries {
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(calls.to_le_bytes());
        bytes.extend((values.len() as i32).to_le_bytes());
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }
    bytes
}

fn of(bytes: Vec<u8>, tensor: &TensorInfo) -> Option<Vec<f32>> {
    Importance::from_bytes(bytes).expect("good data").of(tensor).expect("the same shape")
}

fn refused(bytes: Vec<u8>) -> String {
    Importance::from_bytes(bytes).err().expect("bad data").to_string()
}

#[test]
fn both_forms_say_what_columns_count() {
    let sums = [2.0, 4.0, 0.0, 10.0];
    let want = Some(vec![0.5, 1.0, 1e-6, 2.5]);
    assert_eq!(
        of(gguf(&[("a.in_sum2", &[4, 1], &sums), ("a.counts", &[1, 1], &[7.0])]), &tensor(4, 1)),
        want
    );
    let mut file = legacy(&[("b", 1, &[1.0]), ("a", 3, &sums)]);
    assert_eq!(of(file.clone(), &tensor(4, 1)), want);
    // How many pieces of text, and its name.
    file.extend([3, 0, 0, 0, 4, 0, 0, 0, b't', b'e', b'x', b't']);
    assert_eq!(of(file.clone(), &tensor(4, 1)), want);
    let mut other = tensor(4, 1);
    other.name = "c".to_owned();
    assert_eq!(of(file, &other), None);
}

#[test]
fn both_forms_may_say_where_they_come_from() {
    let origin = |bytes: Vec<u8>| Importance::from_bytes(bytes).map(|data| data.origin().clone());
    let is = |dataset: Option<&str>, chunks| Origin { dataset: dataset.map(str::to_owned), chunks };
    let old = |end: &[u8]| [&legacy(&[("a", 3, &[1.0])]), end].concat();
    for (end, want) in [
        (&b""[..], is(None, None)),
        (b"\x03\0\0\0", is(None, Some(3))),
        (b"\0\0\0\0\x01\0\0\0t", is(Some("t"), None)),
        (b"\xff\xff\xff\xff", is(None, None)),
    ] {
        assert_eq!(origin(old(end)).expect("good data"), want, "{end:?}");
    }
    for (end, want) in [
        (&b"\x03\0"[..], "cut short: the number of pieces of text at byte 21 needs 4 bytes, the file has 23"),
        (b"\x03\0\0\0\0\0\0\0", "the length of the text's name is 0 at byte 25"),
        (b"\x03\0\0\0\x05\0\0\0text", "cut short: the text's name at byte 29 needs 5 bytes"),
    ] {
        let said = refused(old(end));
        assert!(said.contains(want), "{said}");
    }

    let mut writer = Writer::new();
    writer.strings("imatrix.datasets", &["first", "second"]).u32("imatrix.chunk_count", 7);
    for name in ["a.in_sum2", "a.counts"] {
        writer.tensor(name, &[1, 1], GgmlType::F32).expect("a tensor");
    }
    let mut data = writer.begin(Vec::new()).expect("memory");
    data.part(&[0; 4]).and_then(|data| data.part(&[0; 4])).expect("memory");
    let bytes = data.finish().expect("memory");
    assert_eq!(origin(bytes).expect("good data"), is(Some("first"), Some(7)));
    let silent = gguf(&[("a.in_sum2", &[1, 1], &[1.0]), ("a.counts", &[1, 1], &[1.0])]);
    assert_eq!(origin(silent).expect("good data"), is(None, None));
}

/// What llama.cpp's `llama-imatrix` collected for a layer of SmolLM2-135M, written by it in both forms: the older one has means
/// that were rounded twice.
#[test]
fn llama_cpp_says_the_same_in_both_forms() {
    let open = |name: &str| {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/imatrix"));
        Importance::open(&folder.join(name)).expect("good data")
    };
    let (new, old) = (open("layer0.gguf"), open("layer0.dat"));
    let origin = Origin { dataset: Some("calibration.txt".to_owned()), chunks: Some(48) };
    assert_eq!((new.origin(), old.origin()), (&origin, &origin));
    assert_eq!((new.len(), old.len()), (7, 7));
    for (part, columns) in [("attn_q", 576), ("attn_output", 576), ("ffn_gate", 576), ("ffn_down", 1536)] {
        let mut tensor = tensor(columns, 1);
        tensor.name = format!("blk.0.{part}.weight");
        let of = |data: &Importance| data.of(&tensor).expect("the same shape").expect("data of it");
        let (new, old) = (of(&new), of(&old));
        let (least, most) = new.iter().fold((f32::MAX, 0f32), |(a, b), &x| (a.min(x), b.max(x)));
        assert!(most > 10.0 * least, "{part}: from {least} to {most}");
        for (a, b) in new.iter().zip(&old) {
            assert!((a - b).abs() <= 3.0 * f32::EPSILON * a, "{part}: {a} and {b}");
        }
    }
}

#[test]
fn experts_have_data_of_their_own() {
    let sums = [1.0, 3.0, 50.0, 150.0, 7.0, 1.0, 0.0, 0.0];
    let of = |counts: &[f32]| {
        let n = [1, counts.len() as u64];
        of(gguf(&[("a.counts", &n, counts), ("a.in_sum2", &[2, 4], &sums)]), &tensor(2, 4))
    };
    // The third was never asked, the fourth only with zeros.
    assert_eq!(of(&[1.0, 9.0, 0.0, 2.0]), Some(vec![0.5, 1.5, 0.5, 1.5, 1.0, 1.0, 1.0, 1.0]));
    assert_eq!(of(&[20.0]), Some(vec![0.5, 1.5, 0.5, 1.5, 1.75, 0.25, 1.0, 1.0]));
}

/// Means and counts as large and as small as they come, which no sum may turn into infinity.
#[test]
fn extreme_numbers_stay_finite() {
    let got = of(legacy(&[("a", 1, &[f32::MAX, f32::MAX, 1e-45, 0.0])]), &tensor(4, 1)).expect("data");
    assert_eq!(got, [2.0, 2.0, 1e-6, 1e-6]);
    let got = of(legacy(&[("a", 1, &[1e-45, 0.0])]), &tensor(2, 1)).expect("data");
    assert_eq!(got, [2.0, 1e-6]);
}

#[test]
fn shapes_of_another_model_are_refused() {
    let said = |bytes: Vec<u8>, tensor: &TensorInfo| {
        let data = Importance::from_bytes(bytes).expect("good data");
        data.of(tensor).expect_err("another shape").to_string()
    };
    let one = gguf(&[("a.in_sum2", &[4, 1], &[1.0; 4]), ("a.counts", &[1, 1], &[1.0])]);
    let text = said(one.clone(), &tensor(5, 1));
    assert!(text.contains("a has 4 sums, but the tensor 5 columns: data of another model?"), "{text}");
    let text = said(one, &tensor(4, 2));
    assert!(text.contains("a has 4 sums, but the tensor 4 columns in each of 2 matrices"), "{text}");
    let two = gguf(&[("a.in_sum2", &[2, 2], &[1.0; 4]), ("a.counts", &[1, 2], &[1.0; 2])]);
    let text = said(two, &tensor(4, 1));
    assert!(text.contains("a has 4 sums and 2 counts, but the tensor 4 columns"), "{text}");
    let text = said(legacy(&[("a", 1, &[1.0; 3])]), &tensor(4, 1));
    assert!(text.contains("a has 3 sums, but"), "{text}");
}

#[test]
fn damage_is_named() {
    let entry = ("a.in_sum2", &[2u64, 1][..], &[1.0f32, 2.0][..]);
    let counts = ("a.counts", &[1u64, 1][..], &[1.0f32][..]);
    for (bytes, want) in [
        (gguf(&[entry]), "has a.in_sum2 but no a.counts"),
        (gguf(&[counts]), "has a.counts but no a.in_sum2"),
        (gguf(&[("a.weight", &[2, 1], &[1.0, 2.0])]), "holds no importance data: no tensors NAME.in_sum2"),
        (gguf(&[]), "holds no importance data"),
        (gguf(&[("a.in_sum2", &[2, 1], &[1.0, f32::NAN]), counts]), "a: sum 1 is NaN, must be finite"),
        (gguf(&[("a.in_sum2", &[2, 1], &[-1.0, 2.0]), counts]), "a: sum 0 is -1, must be"),
        (gguf(&[entry, ("a.counts", &[1, 1], &[f32::INFINITY])]), "a: count 0 is inf, must be"),
        (gguf(&[entry, ("a.counts", &[1, 3], &[1.0; 3])]), "a has 2 sums for 3 counts"),
        (legacy(&[("a", 1, &[1.0, f32::NEG_INFINITY])]), "a: sum 1 is -inf"),
        (legacy(&[("a", 1, &[1.0]), ("a", 1, &[1.0])]), "has two entries for a"),
        (legacy(&[("a", 1, &[])]), "the number of an entry's values is 0 at byte 13"),
        (legacy(&[("", 1, &[1.0])]), "the length of a name is 0 at byte 4"),
        (legacy(&[(&"a".repeat(1025), 1, &[1.0])]), "the length of a name is 1025 at byte 4"),
        (legacy(&[]), "the older form, which begins with a number of entries (this with 0)"),
        (b"Once upon a time".to_vec(), "neither a GGUF file nor the older form"),
        (b"ab".to_vec(), "cut short: the number of entries at byte 0 needs 4 bytes, the file has 2"),
        (Vec::new(), "cut short"),
    ] {
        let said = refused(bytes);
        assert!(said.contains(want), "{said:?} for {want:?}");
    }
    let mut half = Writer::new();
    half.tensor("a.in_sum2", &[2, 1], GgmlType::F16).expect("a tensor");
    let mut bytes = Vec::new();
    let mut data = half.begin(&mut bytes).expect("memory");
    data.part(&[0; 4]).expect("memory");
    data.finish().expect("memory");
    assert!(refused(bytes).contains("tensor a.in_sum2 is F16, must be F32"));
}

#[test]
fn a_file_cut_anywhere_in_its_entries_is_refused() {
    let whole = legacy(&[("first", 2, &[1.0, 2.0]), ("second", 2, &[3.0])]);
    for n in 0..whole.len() {
        refused(whole[..n].to_vec());
    }
    assert!(Importance::from_bytes(whole).is_ok());
}

proptest! {
    #[test]
    fn any_bytes_are_data_or_an_error(at in 0usize..60, byte: u8, cut in 0usize..60, random: Vec<u8>) {
        let mut bytes = legacy(&[("a", 2, &[1.0, 2.0]), ("bb", 2, &[3.0])]);
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
        bytes.truncate(cut);
        for bytes in [bytes, random] {
            if let Ok(data) = Importance::from_bytes(bytes) {
                for (columns, matrices) in [(1, 1), (2, 1), (1, 2)] {
                    if let Ok(Some(weights)) = data.of(&tensor(columns, matrices)) {
                        assert!(weights.iter().all(|w| w.is_finite() && *w > 0.0));
                    }
                }
            }
        }
    }
}
