//! include/quire_text.h is kept by hand. This test reads both sides and fails when a function, a struct or a constant
//! of one has no equal in the other.

use std::collections::BTreeMap;

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn squeeze(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The C spelling of a Rust type of the boundary.
fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(inner) = rust.strip_prefix("*mut ") {
        return format!("{}*", c_type(inner));
    }
    if let Some(inner) = rust.strip_prefix("*const ") {
        return format!("const {}*", c_type(inner));
    }
    match rust {
        "bool" => "bool",
        "u8" => "uint8_t",
        "u32" => "uint32_t",
        "i32" => "int32_t",
        "i64" => "int64_t",
        "f32" => "float",
        "usize" => "size_t",
        "Str" => "quire_text_str",
        "Bytes" => "quire_text_bytes",
        "Ids" => "quire_text_ids",
        "Gguf" => "quire_text_gguf",
        "VocabView" => "quire_text_vocab",
        "LocalTime" => "quire_text_time",
        "Tokenizer" => "quire_text_tokenizer",
        "ChatTemplate" => "quire_text_template",
        "Vocabulary" => "quire_text_vocabulary",
        "Grammar" => "quire_text_grammar",
        "Matcher" => "quire_text_matcher",
        other => panic!("a type that the test does not know: {other}"),
    }
    .to_owned()
}

/// name -> "return(name type, ...)" as the header would say it.
fn rust_functions(source: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for part in source.split("pub unsafe extern \"C\" fn ").skip(1) {
        let (name, rest) = part.split_once('(').unwrap();
        let (params, rest) = rest.split_once(')').unwrap();
        let returns = rest.split_once('{').unwrap().0.trim();
        let returns = returns.strip_prefix("->").map_or("void".to_owned(), c_type);
        let params: Vec<String> = params
            .split(',')
            .map(squeeze)
            .filter(|p| !p.is_empty())
            .map(|p| {
                let (name, kind) = p.split_once(':').unwrap();
                format!("{} {name}", c_type(kind))
            })
            .collect();
        found.insert(name.to_owned(), format!("{returns}({})", params.join(", ")));
    }
    found
}

fn c_functions(header: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for statement in header.split(';') {
        let statement = squeeze(statement);
        let Some((head, params)) = statement.split_once('(') else { continue };
        let Some((returns, name)) = head.rsplit_once(' ') else { continue };
        if name.starts_with("quire_text_") {
            let returns = returns.rsplit(' ').next().unwrap();
            found.insert(name.to_owned(), format!("{returns}({}", params));
        }
    }
    found
}

fn without_comments(header: &str) -> String {
    header.lines().map(|l| l.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

fn rust_fields(source: &str, name: &str) -> Vec<String> {
    let body = source.split(&format!("pub struct {name} {{")).nth(1).unwrap().split('}').next().unwrap();
    let body: String = body.lines().filter(|l| !l.trim().starts_with("//")).collect();
    body.split(',')
        .filter_map(|f| squeeze(f).strip_prefix("pub ").map(str::to_owned))
        .map(|f| {
            let (name, kind) = f.split_once(':').unwrap();
            format!("{} {name}", c_type(kind))
        })
        .collect()
}

fn c_fields(header: &str, name: &str) -> Vec<String> {
    let before = header.split(&format!("}} {name};")).next().unwrap();
    let body = before.rsplit("typedef struct {").next().unwrap();
    body.split(';').map(squeeze).filter(|f| !f.is_empty()).collect()
}

fn constant(header: &str, name: &str) -> i64 {
    let rest = header.split(&format!("{name} = ")).nth(1).unwrap_or_else(|| panic!("the header lacks {name}"));
    rest.split(',').next().unwrap().trim().parse().unwrap()
}

#[test]
fn functions_agree() {
    let rust = rust_functions(&read("src/ffi.rs"));
    let c = c_functions(&without_comments(&read("include/quire_text.h")));
    assert!(rust.len() > 8);
    assert_eq!(rust, c);
}

#[test]
fn structs_agree() {
    let header = without_comments(&read("include/quire_text.h"));
    let ffi = read("src/ffi.rs");
    for (rust, c) in [
        ("Str", "quire_text_str"),
        ("Bytes", "quire_text_bytes"),
        ("Ids", "quire_text_ids"),
        ("Gguf", "quire_text_gguf"),
        ("VocabView", "quire_text_vocab"),
    ] {
        assert_eq!(rust_fields(&ffi, rust), c_fields(&header, c), "{c}");
    }
    assert_eq!(rust_fields(&read("src/strftime.rs"), "LocalTime"), c_fields(&header, "quire_text_time"));
}

#[test]
fn constants_agree() {
    use quire_text::{error::Status, grammar::Kind, vocab};
    let header = without_comments(&read("include/quire_text.h"));
    for (name, value) in [
        ("QUIRE_TEXT_OK", Status::Ok as i64),
        ("QUIRE_TEXT_INVALID_INPUT", Status::InvalidInput as i64),
        ("QUIRE_TEXT_CORRUPT_FILE", Status::CorruptFile as i64),
        ("QUIRE_TEXT_UNSUPPORTED", Status::Unsupported as i64),
        ("QUIRE_TEXT_TOO_LARGE", Status::TooLarge as i64),
        ("QUIRE_TEXT_INTERNAL", Status::Internal as i64),
        ("QUIRE_TEXT_TOKEN_SPECIAL", i64::from(vocab::SPECIAL)),
        ("QUIRE_TEXT_TOKEN_HOLE", i64::from(vocab::HOLE)),
        ("QUIRE_TEXT_GRAMMAR_JSON_SCHEMA", Kind::JsonSchema as i64),
        ("QUIRE_TEXT_GRAMMAR_REGEX", Kind::Regex as i64),
        ("QUIRE_TEXT_GRAMMAR_CHOICE", Kind::Choice as i64),
        ("QUIRE_TEXT_GRAMMAR_LARK", Kind::Lark as i64),
        ("QUIRE_TEXT_LEADING_KEEP", vocab::LeadingSpace::Keep as i64),
        ("QUIRE_TEXT_LEADING_DROP_ONE", vocab::LeadingSpace::DropOne as i64),
        ("QUIRE_TEXT_LEADING_DROP_ALL", vocab::LeadingSpace::DropAll as i64),
    ] {
        assert_eq!(constant(&header, name), value, "{name}");
    }
}
