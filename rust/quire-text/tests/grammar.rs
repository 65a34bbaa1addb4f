//! Grammars over a small byte-level vocabulary, in which every byte is a token, so that any text can be spelled.

use quire_text::error::Status;
use quire_text::grammar::{Grammar, Kind, Matcher, Vocabulary, ENGINE};
use quire_text::tokenizer::Tokenizer;
use std::time::Instant;

struct World {
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    end: u32,
    size: usize,
}

fn world() -> World {
    let path = format!("{}/../../tests/golden/text/tok_bytelevel_300/tokenizer.json", env!("CARGO_MANIFEST_DIR"));
    let tokenizer = Tokenizer::from_json(&std::fs::read(path).unwrap()).unwrap();
    let vocab = tokenizer.vocab();
    let end =
        (0..vocab.flags.len() as u32).rfind(|&i| vocab.flags[i as usize] & quire_text::vocab::SPECIAL != 0).unwrap();
    // A model's vocabulary is often padded.
    let size = vocab.flags.len() + 21;
    let vocabulary = Vocabulary::build(vocab, &[end], size).unwrap();
    World { tokenizer, vocabulary, end, size }
}

impl World {
    fn grammar(&self, kind: Kind, text: &str) -> Grammar {
        self.vocabulary.compile(kind, text).unwrap_or_else(|e| panic!("{text}: {}", e.message))
    }
    fn refusal(&self, kind: Kind, text: &str) -> String {
        let error = self.vocabulary.compile(kind, text).err().expect("it should not compile");
        assert!(
            matches!(error.status, Status::InvalidInput | Status::TooLarge),
            "{:?} {}",
            error.status,
            error.message
        );
        assert!(error.message.len() < 1700 && !error.message.contains('\n'), "{}", error.message);
        error.message
    }
    fn mask(&self, matcher: &mut Matcher) -> Vec<bool> {
        let mut words = vec![0; self.size.div_ceil(32)];
        matcher.mask(&mut words).unwrap();
        (0..self.size).map(|i| words[i / 32] >> (i % 32) & 1 == 1).collect()
    }
    fn byte(&self, byte: u8) -> u32 {
        let vocab = self.tokenizer.vocab();
        (0..vocab.flags.len() as u32).find(|&i| vocab.flags[i as usize] == 0 && vocab.pieces.get(i) == [byte]).unwrap()
    }
    /// Whether the whole text follows the grammar, byte by byte.
    fn accepts(&self, grammar: &Grammar, text: &str) -> bool {
        let mut matcher = grammar.start();
        let mut finished = false;
        for byte in text.bytes() {
            let token = self.byte(byte);
            if finished || !self.mask(&mut matcher)[token as usize] {
                return false;
            }
            finished = matcher.accept(token).unwrap();
        }
        finished || self.mask(&mut matcher)[self.end as usize]
    }
}

#[test]
fn schemas_regexes_choices_and_lark_accept_what_they_say() {
    let world = world();
    let schema = r#"{"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["x","é\n"]}},
                     "required":["a"],"additionalProperties":false}"#;
    for (kind, grammar, yes, no) in [
        (
            Kind::JsonSchema,
            schema,
            vec![r#"{"a":1}"#, r#"{ "a": -20, "b": "x"}"#, r#"{"a":0,"b":"é\n"}"#],
            vec!["{}", r#"{"a":1.5}"#, r#"{"a":1,"b":"y"}"#, r#"{"a":1,"c":2}"#, r#"{"a":1"#, r#"{"a":1}}"#],
        ),
        (
            Kind::JsonSchema,
            r##"{"$ref":"#/$defs/t","$defs":{"t":{"anyOf":[{"type":"null"},
                               {"type":"array","items":{"$ref":"#/$defs/t"},"maxItems":2}]}}}"##,
            vec!["null", "[]", "[null,[[],null]]"],
            vec!["1", "[null,null,null]"],
        ),
        (Kind::Regex, "(ab)+[0-9]{2,3}", vec!["ab12", "abab123"], vec!["", "ab1", "ab1234", "12", "xab12"]),
        (Kind::Regex, "^a+$", vec!["a", "aa"], vec!["", "b", "ba"]),
        (Kind::Regex, "a/b|\\d+é", vec!["a/b", "42é"], vec!["a", "42"]),
        (
            Kind::Choice,
            r#"["yes","yes!","no\n","a|b","(","\\d","\"q\"/","日本"]"#,
            vec!["yes", "yes!", "no\n", "a|b", "(", "\\d", "\"q\"/", "日本"],
            vec!["", "ye", "no", "a", "1", "yes!!"],
        ),
        (
            Kind::Lark,
            "start: item (\",\" item)*\nitem: /[a-z]+/ | \"<\" start \">\"",
            vec!["a", "ab,c", "<a,<b>>,c"],
            vec!["", "a,", "<a", "A"],
        ),
    ] {
        let compiled = world.grammar(kind, grammar);
        for text in yes {
            assert!(world.accepts(&compiled, text), "{grammar} should accept {text:?}");
        }
        for text in no {
            assert!(!world.accepts(&compiled, text), "{grammar} should not accept {text:?}");
        }
    }
}

#[test]
fn a_token_is_allowed_exactly_if_its_bytes_are() {
    let world = world();
    let vocab = world.tokenizer.vocab();
    let grammar = world
        .grammar(Kind::JsonSchema, r#"{"type":"object","properties":{"the":{"type":"string"}},"required":["the"]}"#);
    for before in ["", "{", "{\"", "{\"the\":", "{\"the\": \"th", "{\"the\": \"\\", "{\"the\":\"é"] {
        let spelled = |text: &[u8]| {
            let mut matcher = grammar.start();
            for &byte in before.as_bytes().iter().chain(text) {
                let token = world.byte(byte);
                if !world.mask(&mut matcher)[token as usize] || matcher.accept(token).unwrap() {
                    return false;
                }
            }
            true
        };
        let mut matcher = grammar.start();
        for byte in before.bytes() {
            matcher.accept(world.byte(byte)).unwrap();
        }
        let mask = world.mask(&mut matcher);
        for id in 0..world.size as u32 {
            let text = (id as usize) < vocab.flags.len() && vocab.flags[id as usize] == 0;
            let expected = text && !vocab.pieces.get(id).is_empty() && spelled(vocab.pieces.get(id));
            assert_eq!(mask[id as usize], expected, "token {id} behind {before:?}");
        }
    }
}

#[test]
fn an_answer_ends_where_nothing_can_follow_and_end_tokens_where_it_may_end() {
    let world = world();
    let grammar = world.grammar(Kind::Choice, r#"["a","ab"]"#);
    let mut matcher = grammar.start();
    assert!(!world.mask(&mut matcher)[world.end as usize]);
    assert!(!matcher.accept(world.byte(b'a')).unwrap());
    assert!(world.mask(&mut matcher)[world.end as usize]);
    assert!(matcher.accept(world.byte(b'b')).unwrap());

    let mut other = grammar.start();
    other.accept(world.byte(b'a')).unwrap();
    assert!(other.accept(world.end).unwrap(), "the end token ends it");
}

#[test]
fn rollback_takes_back_what_was_accepted() {
    let world = world();
    let grammar = world.grammar(Kind::Regex, "a(b|c)d");
    let mut matcher = grammar.start();
    let mut masks = vec![world.mask(&mut matcher)];
    for byte in "ac".bytes() {
        matcher.accept(world.byte(byte)).unwrap();
        masks.push(world.mask(&mut matcher));
    }
    assert!(matcher.accept(world.byte(b'd')).unwrap());
    matcher.rollback(1).unwrap();
    assert_eq!(world.mask(&mut matcher), masks[2]);
    matcher.rollback(2).unwrap();
    assert_eq!(world.mask(&mut matcher), masks[0]);
    assert!(matcher.rollback(1).is_err());
}

#[test]
fn special_tokens_are_no_text_and_a_lark_grammar_can_name_them() {
    let world = world();
    let vocab = world.tokenizer.vocab();
    let any = world.grammar(Kind::Regex, "(?s:.*)");
    let mask = world.mask(&mut any.start());
    for id in 0..vocab.flags.len() as u32 {
        if vocab.flags[id as usize] != 0 {
            assert_eq!(mask[id as usize], id == world.end, "{id}");
        }
    }
    let special = (0..vocab.flags.len() as u32).find(|&i| vocab.flags[i as usize] != 0 && i != world.end);
    let id = special.expect("the vocabulary has two special tokens");
    let named = world.grammar(Kind::Lark, &format!("start: <[{id}]> \"a\""));
    let mask = world.mask(&mut named.start());
    assert_eq!(mask.iter().filter(|&&b| b).count(), 1);
    assert!(mask[id as usize]);
}

#[test]
fn what_does_not_compile_says_why() {
    let world = world();
    for (kind, text, part) in [
        (Kind::JsonSchema, "{", "valid JSON"),
        (Kind::JsonSchema, "[]", ""),
        (Kind::JsonSchema, r#"{"type":"strange"}"#, "strange"),
        (Kind::JsonSchema, r#"{"$ref":"https://example.org/schema.json"}"#, "example.org"),
        (Kind::JsonSchema, r#"{"$ref":"file:///etc/passwd"}"#, "passwd"),
        (Kind::JsonSchema, r##"{"$ref":"#/$defs/none"}"##, "none"),
        (Kind::JsonSchema, r#"{"type":"string","pattern":"("}"#, ""),
        (Kind::JsonSchema, r#"{"type":"integer","minimum":5,"maximum":1}"#, ""),
        (Kind::JsonSchema, r#"{"not":{"type":"string"}}"#, "not"),
        (Kind::JsonSchema, r##"{"$ref":"#"}"##, "no token"),
        (Kind::Regex, "(", "unclosed"),
        (Kind::Regex, "(?=a)b", ""),
        (Kind::Choice, "[1]", "valid JSON"),
        (Kind::Lark, "", ""),
        (Kind::Lark, "begin: \"a\"", "start"),
        (Kind::Lark, "start: nothing", "nothing"),
        (Kind::Lark, "start: \"a\" )", "1("),
    ] {
        let message = world.refusal(kind, text);
        assert!(!message.is_empty() && message.contains(part), "{text}: {message}");
    }
}

#[test]
fn objects_have_a_bounded_number_of_properties() {
    let world = world();
    let object = |count: usize| {
        let all: Vec<String> = (0..count).map(|i| format!("\"p{i}\":{{\"type\":\"integer\"}}")).collect();
        format!("{{\"type\":\"object\",\"properties\":{{{}}}}}", all.join(","))
    };
    assert!(world.refusal(Kind::JsonSchema, &object(451)).contains("one may have 450, all together 4096"));
    let many = format!("{{\"anyOf\":[{}]}}", vec![object(400); 11].join(","));
    assert!(world.refusal(Kind::JsonSchema, &many).contains("too many properties"));
}

#[test]
fn hostile_grammars_are_refused_or_compile_within_bounds() {
    let world = world();
    let nested = |open: &str, close: &str, n: usize| format!("{}{}", open.repeat(n), close.repeat(n));
    let mut rules = String::from("start: r0\n");
    for i in 0..5000 {
        rules += &format!("r{i}: r{}\n", i + 1);
    }
    rules += "r5000: \"a\"\n";
    let alternatives = format!("{{\"anyOf\":[{}]}}", ["{\"type\":\"string\"}"; 30].join(","));
    let product = format!("{{\"allOf\":[{}]}}", vec![alternatives; 12].join(","));
    let words: Vec<String> = (0..60_000).map(|i| format!("\"value number {i}\"")).collect();
    for (kind, text) in [
        (Kind::JsonSchema, format!("{}{{}}{}", "{\"items\":".repeat(100), "}".repeat(100))),
        (Kind::JsonSchema, nested("[", "]", 100_000)),
        (Kind::JsonSchema, format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000))),
        (Kind::JsonSchema, r##"{"$ref":"#"}"##.to_owned()),
        (Kind::JsonSchema, r##"{"allOf":[{"$ref":"#"},{"$ref":"#"}]}"##.to_owned()),
        (Kind::JsonSchema, product),
        (Kind::JsonSchema, format!("{{\"enum\":[{}]}}", words.join(","))),
        (Kind::JsonSchema, r#"{"type":"string","maxLength":1000000000}"#.to_owned()),
        (
            Kind::JsonSchema,
            r#"{"type":"array","items":{"type":"array","minItems":100000},"minItems":100000}"#.to_owned(),
        ),
        (Kind::JsonSchema, r#"{"type":"string","pattern":"((((a{1,1000}){1,1000}){1,1000}){1,1000})b"}"#.to_owned()),
        (Kind::Regex, "(((((a{1000}){1000}){1000}){1000}){1000})".to_owned()),
        (Kind::Regex, nested("(", ")", 100_000)),
        (Kind::Regex, "(a|b)*a(a|b){200}".to_owned()),
        (Kind::Regex, "a".repeat(1 << 16)),
        (Kind::Regex, "x".repeat((1 << 16) + 1)),
        (Kind::Regex, format!("({})", vec![".*a"; 2000].join("&"))),
        (Kind::Choice, format!("[{}]", words.join(","))),
        (Kind::Choice, format!("[{}]", words[..40_000].join(","))),
        (Kind::JsonSchema, format!("{{\"enum\":[{}]}}", words[..40_000].join(","))),
        (Kind::Lark, format!("start: {}\"a\"{}", "(".repeat(30_000), ")".repeat(30_000))),
        (Kind::Lark, rules),
        (Kind::Lark, "start: start start | \"a\"".to_owned()),
        (Kind::Lark, "start: a\na: b | \"x\"\nb: a".to_owned()),
        (Kind::Lark, format!("start: {}", "\"a\"~0..1000 ".repeat(2000))),
    ] {
        let start = Instant::now();
        let shown: String = text.chars().take(60).collect();
        let outcome = world.vocabulary.compile(kind, &text);
        let compiled = start.elapsed();
        let what = match &outcome {
            Err(error) => {
                assert!(matches!(error.status, Status::InvalidInput | Status::TooLarge), "{}", error.message);
                error.message.clone()
            }
            Ok(grammar) => {
                let mut matcher = grammar.start();
                let mut words = vec![0; world.size.div_ceil(32)];
                let mut steps = 0;
                while steps < 50 && matcher.mask(&mut words).is_ok() {
                    let id = words
                        .iter()
                        .enumerate()
                        .find(|(_, &w)| w != 0)
                        .map(|(i, &w)| i as u32 * 32 + w.trailing_zeros());
                    steps += 1;
                    if matcher.accept(id.unwrap()).unwrap_or(true) {
                        break;
                    }
                }
                format!("{steps} steps")
            }
        };
        println!("{shown}: compiled {compiled:?}, all {:?}: {what}", start.elapsed());
        assert!(start.elapsed().as_secs() < 20, "{shown}");
    }
}

#[test]
fn the_engine_is_the_one_of_the_lock_file() {
    let lock = std::fs::read_to_string(format!("{}/Cargo.lock", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let (name, version) = ENGINE.split_once(' ').unwrap();
    assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"")));
}
