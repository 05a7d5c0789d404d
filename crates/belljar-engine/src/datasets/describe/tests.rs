use std::io::{Seek, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn described(name: &str, bytes: &[u8]) -> Description {
    describe(name, &file_of(bytes), bytes.len() as u64)
}

fn description(format: &'static str, columns: &[&str], rows: u64) -> Description {
    let columns = columns.iter().map(ToString::to_string).collect();
    Description { format, columns: Some(columns), rows: Some(rows) }
}

fn only(format: &'static str) -> Description {
    Description { format, ..Description::default() }
}

#[test]
fn what_is_not_known_is_not_said() {
    let json = |description: &Description| serde_json::to_string(description).unwrap();
    assert_eq!(json(&only("zip")), r#"{"format":"zip"}"#);
    assert_eq!(
        json(&description("csv", &["a"], 0)),
        r#"{"format":"csv","columns":["a"],"rows":0}"#
    );
}

#[test]
fn formats_are_told_by_content_then_by_name() {
    let cases: &[(&str, &[u8], &str)] = &[
        ("a.csv", b"SQLite format 3\0...", "sqlite"),
        ("a.h5", b"\x89HDF\r\n\x1A\n...", "hdf5"),
        ("a.XLSX", b"PK\x03\x04...", "excel"),
        ("a.npz", b"PK\x03\x04...", "npz"),
        ("a.zip", b"PK\x05\x06...", "zip"),
        ("a.xls", b"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1", "excel"),
        ("a.csv.gz", b"\x1F\x8B\x08", "gzip"),
        ("a.pkl", b"\x80\x05\x95", "pickle"),
        ("a.json", b"[1, 2]", "json"),
        ("a.json", b"[\0", "binary"),
        ("notes", b"Gr\xFC\xDFe, \x1B[1mAnna\x1B[0m\r\n", "text"),
        ("notes", b"\xFF\xFEa\0", "text"),
        ("notes", b"", "text"),
        ("noise.bin", b"abc\x02", "binary"),
        ("a.parquet", b"PAR1 is the first word of a text", "text"),
        ("a.parquet", b"PAR1", "text"),
        ("a.parquet", b"PAR1\0\0\0\0\0", "binary"),
        ("secret.parquet", b"PARE\x10\0\0\0PARE", "parquet"),
        ("a", b"ARROW1\0\0", "arrow"),
        ("a.feather", b"ARROW1\0\0", "feather"),
        ("a.feather", b"FEA1....FEA1", "feather"),
        ("stream.csv", b"\xFF\xFF\xFF\xFF\x04\0\0\0\0\0\0\0", "binary"),
    ];
    for (name, bytes, format) in cases {
        assert_eq!(described(name, bytes), only(format), "{name} {bytes:?}");
    }
    // UTF-16, as Excel writes it.
    assert_eq!(described("a.csv", b"\xFF\xFEa\0,\0b\0\n\0"), only("csv"));
}

#[test]
fn tables_of_text_have_a_header_and_records() {
    let cases: &[(&str, &[&str], u64)] = &[
        ("", &[], 0),
        ("\u{FEFF}", &[], 0),
        ("\n \r\n\n", &[], 0),
        ("a", &["a"], 0),
        ("a,b\n", &["a", "b"], 0),
        ("a,b\n1,2\n3,4", &["a", "b"], 2),
        ("\n  \n\u{FEFF}a", &["\u{FEFF}a"], 0),
        ("\u{FEFF}a;b,c;d\r\n\r\n1;2;3\r\n", &["a", "b,c", "d"], 1),
        ("\u{FEFF}\"a\",b\r1,2\r", &["a", "b"], 1),
        ("a|b\n\n   \n\t\n1|2\n\n", &["a", "b"], 1),
        ("\ta\n0\t1\n", &["", "a"], 1),
        ("a,,\n,,\n", &["a", "", ""], 1),
        (
            "\"a\nb\",\"say \"\"c\"\"\",\"d;;;;\"\n\"1\n\n2\",\"\"\"\",3\n",
            &["a\nb", "say \"c\"", "d;;;;"],
            1,
        ),
        // A quote counts only at the beginning of a field. After the closing quote the field
        // continues.
        ("pipe 5\",b\n6\",\"x\"y\n\"\"\n", &["pipe 5\"", "b"], 2),
    ];
    for (text, columns, rows) in cases {
        let expected = description("csv", columns, *rows);
        assert_eq!(described("a.csv", text.as_bytes()), expected, "{text:?}");
    }
    // In a `.tsv` file tabs win, even if another delimiter occurs more often.
    assert_eq!(described("a.tsv", b"a, b, c\td\n"), description("tsv", &["a, b, c", "d"], 0));
    assert_eq!(described("a.csv", b"gr\xFCn,b\n"), description("csv", &["gr\u{FFFD}n", "b"], 0));
}

#[test]
fn a_quote_that_never_closes_hides_what_follows() {
    let after_header = described("a.csv", b"a,b\n1,\"2\n3,4\n");
    assert_eq!(after_header, Description { rows: None, ..description("csv", &["a", "b"], 0) });
    assert_eq!(described("a.csv", b"a,\"b\n1,2\n"), only("csv"));
}

#[test]
fn tables_of_text_are_bounded() {
    let many: Vec<String> = (0..10_000).map(|which| format!("column {which}")).collect();
    let wide = described("a.csv", format!("{}\n1\n", many.join(",")).as_bytes());
    assert_eq!(wide.columns.as_deref(), Some(&many[..1000]));
    assert_eq!(wide.rows, Some(1));

    let long = described("a.csv", format!("{},b\n", "ü€😀".repeat(1000)).as_bytes());
    let columns = long.columns.unwrap();
    assert_eq!(columns[0].chars().count(), 200);
    assert!(!columns[0].contains('\u{FFFD}'));
    assert_eq!(columns[1], "b");

    // A sparse file, so that it takes no room: the text, then a hole up to the size.
    let too_large = |text: &[u8]| {
        let file = file_of(text);
        file.set_len(MAX_COUNTED + 1).unwrap();
        describe("a.csv", &file, MAX_COUNTED + 1)
    };
    let mut text = b"a,b\n1,2\n".to_vec();
    text.resize(HEAD, b'\n');
    assert_eq!(too_large(&text).columns.unwrap(), ["a", "b"]);
    assert_eq!(too_large(&text).rows, None);
    text.insert(0, b'"');
    assert_eq!(too_large(&text), only("csv"));
}

#[test]
fn the_worst_table_takes_little_time() {
    let bytes = b"\"\",".repeat(usize::try_from(MAX_COUNTED).unwrap() / 3);
    let before = Instant::now();
    assert_eq!(described("a.csv", &bytes).rows, Some(0));
    // It takes less than a second on an idle machine; the limit only detects a hang.
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}", before.elapsed());
}

#[test]
fn lines_of_json_are_counted() {
    let rows = |text: &str| described("a.jsonl", text.as_bytes()).rows;
    assert_eq!(rows(""), Some(0));
    assert_eq!(rows("{}\n  \r\n[1]\n\n{}"), Some(3));
    assert_eq!(described("a.ndjson", b"1\n"), Description { rows: Some(1), ..only("jsonl") });
}

#[test]
fn the_first_dimension_of_an_array_is_its_rows() {
    let rows = |header: &str| {
        let mut bytes = b"\x93NUMPY\x01\0".to_vec();
        bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
        bytes.extend(header.as_bytes());
        let description = described("a.npy", &bytes);
        assert_eq!(description.format, "npy");
        description.rows
    };
    assert_eq!(rows("{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }   \n"), Some(3));
    assert_eq!(rows("{'descr': [('shape', '<f8')], 'fortran_order': True, 'shape':(7,)}"), Some(7));
    assert_eq!(rows("{'descr': '<f8', 'fortran_order': False, 'shape': ()}"), None);
    assert_eq!(rows("{'shape': (99999999999999999999999,)}"), None);
    assert_eq!(rows("{'shape'"), None);
}

/// Writes the end of a Parquet file. The file has no other content.
struct Footer(Vec<u8>);

impl Footer {
    fn unsigned(&mut self, mut value: usize) {
        while value >= 0x80 {
            self.0.push(u8::try_from(value & 0x7F).unwrap() | 0x80);
            value >>= 7;
        }
        self.0.push(u8::try_from(value).unwrap());
    }

    /// `elements` are names and their numbers of children.
    fn with_schema(elements: &[(&str, usize)]) -> Footer {
        // Version 2, and a list of structs.
        let mut footer = Footer(vec![0x15, 0x04, 0x19, 0xFC]);
        footer.unsigned(elements.len());
        for (name, children) in elements {
            // A type, and the name three fields later.
            footer.0.extend([0x15, 0x02, 0x38]);
            footer.unsigned(name.len());
            footer.0.extend(name.as_bytes());
            if *children > 0 {
                footer.0.push(0x15);
                footer.unsigned(children * 2);
            }
            footer.0.push(0);
        }
        footer
    }

    fn rows(mut self, rows: usize) -> Vec<u8> {
        self.0.push(0x16);
        self.unsigned(rows * 2);
        self.0.push(0);
        self.file()
    }

    fn file(self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap().to_le_bytes();
        [b"PAR1", &self.0[..], &length, b"PAR1"].concat()
    }
}

const NESTED: [(&str, usize); 8] = [
    ("schema", 3),
    ("first", 0),
    ("second", 2),
    ("list", 1),
    ("element", 0),
    ("x", 0),
    ("third", 1),
    ("y", 0),
];

#[test]
fn columns_of_parquet_are_those_at_the_top() {
    let file = Footer::with_schema(&NESTED).rows(1_000_000);
    let expected = description("parquet", &["first", "second", "third"], 1_000_000);
    assert_eq!(described("no name", &file), expected);
    let file = Footer::with_schema(&[("schema", 0)]).rows(0);
    assert_eq!(described("a", &file), description("parquet", &[], 0));

    let many: Vec<String> = (0..10_000).map(|which| format!("column {which}")).collect();
    let elements = many.iter().map(|name| (name.as_str(), 0));
    let elements: Vec<_> = [("schema", many.len())].into_iter().chain(elements).collect();
    let wide = described("a", &Footer::with_schema(&elements).rows(5));
    assert_eq!(wide.columns.as_deref(), Some(&many[..1000]));
    assert_eq!(wide.rows, Some(5));
}

#[test]
fn of_a_parquet_that_makes_no_sense_only_the_format_is_known() {
    let more_children_than_elements = Footer::with_schema(&[("schema", 3), ("a", 0)]).rows(1);
    let unfinished_column = Footer::with_schema(&[("schema", 1), ("a", 1)]).rows(1);
    let mut negative_rows = Footer::with_schema(&[("schema", 0)]);
    negative_rows.0.extend([0x16, 0x01, 0]);
    let no_rows = Footer::with_schema(&NESTED);
    // A list of 2^63 structs, and lists of lists of lists.
    let endless = [vec![0x99, 0xFC], vec![0xFF; 8], vec![0x7F], vec![0; 1 << 20]].concat();
    let deep = vec![0x99; 1 << 20];
    let too_long = [b"PAR1", &(u32::MAX).to_le_bytes()[..], b"PAR1"].concat();
    for (which, bytes) in [
        more_children_than_elements,
        unfinished_column,
        negative_rows.file(),
        no_rows.file(),
        Footer(endless).file(),
        Footer(deep).file(),
        too_long,
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(described("a", bytes), only("parquet"), "case {which}");
    }
}

#[test]
fn nothing_is_read_behind_the_size_and_the_cursor_stays() {
    let mut file = file_of(b"a,b\n1,2\n3,4\n");
    file.seek(io::SeekFrom::Start(5)).unwrap();
    assert_eq!(describe("a.csv", &file, 8), description("csv", &["a", "b"], 1));
    assert_eq!(file.stream_position().unwrap(), 5);
    // The file is shorter than the given size, so its rows are unknown.
    let shrunk = describe("a.csv", &file, 1000);
    assert_eq!(shrunk, Description { rows: None, ..description("csv", &["a", "b"], 0) });
    assert_eq!(describe("a.csv", &file, u64::MAX).columns.unwrap(), ["a", "b"]);
    let footer = Footer::with_schema(&NESTED).rows(7);
    assert_eq!(describe("a.parquet", &file_of(&footer), u64::MAX).columns, None);
    // A file that cannot be read is described like an empty one.
    assert_eq!(describe("a", &File::open("/").unwrap(), 4096), only("text"));
}

const PYTHON: &str = "/var/lib/belljar/python/bin/python";

const MAKE_FILES: &str = r#"
import numpy as np, pandas as pd, pyarrow as pa, pyarrow.parquet as pq, pyarrow.feather as feather
table = pa.table({
    "id": pa.array([1, 2, 3]),
    "größe": pa.array([1.5, None, 2.5]),
    "where": pa.array([{"x": 1, "y": [1, 2]}] * 3),
    "tags": pa.array([["a"], [], None], pa.list_(pa.string())),
    "pairs": pa.array([[("k", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
    "last": pa.array(["a,b", 'say "c"', "two\nlines"]),
})
pq.write_table(table, "nested.parquet", row_group_size=1)
pq.write_table(pa.table({f"c{i}": [i] for i in range(3000)}), "wide.parquet")
flat = table.select(["id", "größe", "last"])
flat.to_pandas().to_parquet("pandas.parquet")
flat.to_pandas().to_csv("pandas.csv", index=False)
flat.to_pandas().to_csv("pandas.tsv", sep="\t", index=False)
flat.to_pandas().to_json("pandas.jsonl", orient="records", lines=True)
feather.write_feather(table, "nested.feather")
feather.write_feather(flat, "old.feather", version=1)
with pa.ipc.new_file("nested.arrow", table.schema) as writer: writer.write_table(table)
with pa.ipc.new_stream("nested.arrows", table.schema) as writer: writer.write_table(table)
np.save("array.npy", np.zeros((5, 2)))
np.save("records.npy", np.zeros(4, dtype=[("shape", "<f8"), ("b", "<i4")]))
np.savez("arrays.npz", a=np.zeros(3))
"#;

#[test]
fn files_of_real_libraries_are_described() {
    if !Path::new(PYTHON).exists() {
        println!("skipped: there is no {PYTHON} to make them with");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let made =
        Command::new(PYTHON).args(["-c", MAKE_FILES]).current_dir(&directory).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let read = |name: &str| std::fs::read(directory.path().join(name)).unwrap();
    let real = |name: &str| described(name, &read(name));

    let nested = ["id", "größe", "where", "tags", "pairs", "last"];
    let flat = ["id", "größe", "last"];
    let without_rows = |format| Description { rows: None, ..description(format, &nested, 0) };
    assert_eq!(real("nested.parquet"), description("parquet", &nested, 3));
    assert_eq!(real("pandas.parquet"), description("parquet", &flat, 3));
    assert_eq!(real("wide.parquet").columns.unwrap().last().unwrap(), "c999");
    assert_eq!(real("pandas.csv"), description("csv", &flat, 3));
    assert_eq!(real("pandas.tsv"), description("tsv", &flat, 3));
    assert_eq!(real("pandas.jsonl"), Description { rows: Some(3), ..only("jsonl") });
    assert_eq!(real("nested.feather"), without_rows("feather"));
    assert_eq!(real("old.feather"), only("feather"));
    assert_eq!(real("nested.arrow"), without_rows("arrow"));
    assert_eq!(real("nested.arrows"), without_rows("arrow"));
    assert_eq!(real("array.npy"), Description { rows: Some(5), ..only("npy") });
    assert_eq!(real("records.npy"), Description { rows: Some(4), ..only("npy") });
    assert_eq!(real("arrays.npz"), only("npz"));

    for name in ["nested.parquet", "nested.arrow", "nested.arrows", "pandas.csv", "array.npy"] {
        spoil_everywhere(name, &read(name));
    }
}

/// Cuts the file at every position, and changes every byte of it: nothing must panic.
fn spoil_everywhere(name: &str, bytes: &[u8]) {
    let size = bytes.len() as u64;
    let file = file_of(bytes);
    for (at, byte) in (0..).zip(bytes) {
        let _ = describe(name, &file, at);
        for flip in [0x01, 0x10, 0x80, 0xFF] {
            file.write_all_at(&[byte ^ flip], at).unwrap();
            let _ = describe(name, &file, size);
        }
        file.write_all_at(&[*byte], at).unwrap();
    }
    assert_eq!(describe(name, &file, size), described(name, bytes));
}

fn names() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "a.csv", "a.tsv", "a.json", "a.jsonl", "a.npy", "a.arrow", "a", ".", "",
    ])
}

proptest! {
    #[test]
    fn any_bytes_can_be_described(
        name in names(),
        magic in prop::sample::select(vec![
            &b""[..], b"PAR1", b"ARROW1\0\0\xFF\xFF\xFF\xFF", b"\xFF\xFF\xFF\xFF\x40\0\0\0",
            b"\x93NUMPY\x01\0\x10\0", b"\x93NUMPY\x02\0",
        ]),
        bytes in prop::collection::vec(any::<u8>(), 0..500),
    ) {
        for bytes in [[magic, &bytes].concat(), Footer(bytes).file()] {
            let columns = described(name, &bytes).columns.unwrap_or_default();
            prop_assert!(columns.len() <= 1000);
            prop_assert!(columns.iter().all(|column| column.chars().count() <= 200));
        }
    }

    #[test]
    fn any_spoiled_footer_can_be_described(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = Footer::with_schema(&NESTED).rows(7);
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = described("a", &bytes);
    }

    #[test]
    fn what_is_written_as_csv_is_read_again(
        delimiter in prop::sample::select(vec![',', ';', '\t', '|']),
        names in prop::collection::vec("[a-z\",;|\t\r\n é]{0,12}", 2..6),
        rows in prop::collection::vec("[a-z\",;|\t\r\n é]{0,12}", 0..20),
    ) {
        let quoted = |text: &String| format!("\"{}\"", text.replace('"', "\"\""));
        let header: Vec<String> = names.iter().map(quoted).collect();
        let mut text = header.join(&delimiter.to_string());
        for row in &rows {
            text += "\n";
            text += &quoted(row);
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let expected = description("csv", &names, rows.len() as u64);
        prop_assert_eq!(described("a.csv", text.as_bytes()), expected);
    }
}

/// An Arrow stream with the columns `id` and `w`, as pyarrow writes it.
const ARROW_STREAM: &str = "ffffffffa80000001000000000000a000c000600050008000a000000000104000c00000008000800000004000800\
    000004000000020000004000000004000000d8ffffff00000105100000001800000004000000000000000100000077000000040004000400\
    0000100014000800060007000c00000010001000000000000102100000001c0000000400000000000000020000006964000008000c000800\
    070008000000000000014000000000000000ffffffff00000000";

/// Describes random bytes: no panic, and little more memory than their size.
#[test]
fn fuzz_descriptions() {
    let hex: Vec<u8> = ARROW_STREAM.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digits = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    let stream: Vec<u8> = hex.chunks(2).map(digits).collect();
    assert_eq!(described("a", &stream).columns.unwrap(), ["id", "w"]);
    let shape = b"{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }\n";
    let length = u16::try_from(shape.len()).unwrap().to_le_bytes();
    let npy = [&b"\x93NUMPY\x01\0"[..], &length, shape].concat();
    assert_eq!(described("a.npy", &npy).rows, Some(3));
    let seeds = vec![
        Footer::with_schema(&NESTED).rows(1_000_000),
        [FILE_MAGIC, &stream[..], b"ARROW1"].concat(),
        stream,
        npy,
        b"\xEF\xBB\xBFa;\"b\n\"\"c\";d\r\n1;2;3\n\n4;5;6".to_vec(),
        b"{\"a\": 1}\n\n[2]\n".to_vec(),
        b"PK\x03\x04 SQLite format 3\0".to_vec(),
    ];
    let parser = belljar_fuzz::Parser::new("descriptions of datasets", seeds).cases(300);
    // Memory holds the beginning of the file, the chunk that is counted, and the metadata. A column
    // name takes at least 24 bytes, even if it is only a comma in a header.
    parser.allocates_at_most(512 << 10, 48).withstands(|bytes| {
        let file = file_of(bytes);
        for name in ["a.csv", "a.tsv", "a.jsonl", "a.npy", "a.parquet", "a.feather", "a"] {
            // With the real size, and with a smaller one.
            for size in [bytes.len() as u64, bytes.len() as u64 / 2] {
                let columns = describe(name, &file, size).columns.unwrap_or_default();
                assert!(columns.len() <= MAX_COLUMNS);
                assert!(columns.iter().all(|it| it.chars().count() <= MAX_NAME_CHARACTERS));
            }
        }
    });
}

const FILE_MAGIC: &[u8] = b"ARROW1\0\0";
