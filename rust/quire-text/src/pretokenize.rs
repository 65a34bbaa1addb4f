//! Pre-tokenizers of byte-level BPE by the names that GGUF files give them.
//!
//! A pre-tokenizer is a list of rules; each cuts every piece the one before it left: matches become pieces, and so does
//! what lies between them. The published patterns end in `\s+(?!\S)`: a run of white space leaves its last character to
//! the word after it. That is done here by giving the character back after the match, so that the patterns need no
//! look-ahead and run on an automaton in linear time whatever the text is.

use crate::error::{Error, Result};
use regex::Regex;

/// When a match of nothing but white space gives its last character back to a following word.
#[derive(Clone, Copy, PartialEq)]
enum GiveBack {
    Never,
    Always,
    /// The pattern has `\s*[\r\n]+` before `\s+(?!\S)`: a run that ends a line stays whole.
    UnlessLineEnd,
}

struct Rule {
    pattern: &'static str,
    give_back: GiveBack,
}

const fn plain(pattern: &'static str) -> Rule {
    Rule { pattern, give_back: GiveBack::Never }
}
const fn words(pattern: &'static str) -> Rule {
    Rule { pattern, give_back: GiveBack::Always }
}
const fn lines(pattern: &'static str) -> Rule {
    Rule { pattern, give_back: GiveBack::UnlessLineEnd }
}

const DIGIT: Rule = plain(r"\p{N}");
const UP_TO_3_DIGITS: Rule = plain(r"\p{N}{1,3}");
const CJK: Rule = plain("[一-龥\u{3040}-ゟ゠-ヿ]+");
const GPT2: Rule = words(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+");
const LLAMA3: Rule =
    lines(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");
const QWEN2: Rule =
    lines(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");
const QWEN35: Rule = lines(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
const DEEPSEEK3: Rule = lines(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"
));
const GPT4O: Rule = lines(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
));
const TEKKEN: Rule = lines(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
));
// `\s*[\r\n]` takes one line end only, so a run that ends a line is whole as well.
const BAILING: Rule =
    lines(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+");
const SEED_CODER: Rule =
    lines(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+");
const MINICPM5: Rule =
    lines(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");

struct Entry {
    names: &'static [&'static str],
    rules: &'static [Rule],
    /// A piece that is a token as it stands is not merged up from its bytes.
    ignore_merges: bool,
    /// BOS goes before a text unless the file says otherwise.
    add_bos: bool,
}

const fn entry(names: &'static [&'static str], rules: &'static [Rule]) -> Entry {
    Entry { names, rules, ignore_merges: false, add_bos: false }
}

static TABLE: &[Entry] = &[
    entry(&["default"], &[plain(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, plain(r"\p{N}+"), plain(r"[0-9][0-9][0-9]")]),
    entry(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "modern-bert",
        ],
        &[GPT2],
    ),
    entry(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[DIGIT, GPT2],
    ),
    Entry {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        rules: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    entry(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], &[LLAMA3]),
    entry(
        &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"],
        &[QWEN2],
    ),
    entry(&["qwen35"], &[QWEN35]),
    entry(&["deepseek-v3", "hunyuan-dense", "joyai-llm"], &[UP_TO_3_DIGITS, CJK, DEEPSEEK3]),
    entry(
        &["deepseek-coder"],
        &[plain(r"[\r\n]"), plain(r"\s?\p{L}+"), plain(r"\s?\p{P}+"), plain("[一-龥ࠀ-一가-\u{d7ff}]+"), DIGIT],
    ),
    entry(&["falcon"], &[plain(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, plain(r"[0-9][0-9][0-9]")]),
    entry(&["gpt-4o", "llama4", "kanana2", "minimax-m2"], &[GPT4O]),
    Entry { names: &["tekken"], rules: &[TEKKEN], ignore_merges: true, add_bos: true },
    entry(&["poro-chat", "bloom", "gpt3-finnish"], &[plain(" ?[^(\\s|.,!?…。，、।۔،)]+")]),
    entry(&["viking"], &[plain(" ?[^(\\s|.,!?…。，、।۔،)]+"), DIGIT]),
    entry(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    entry(&["seed-coder"], &[SEED_CODER]),
    entry(&["laguna"], &[plain(r"[^\n]+|[\n]+"), QWEN2]),
    Entry { names: &["minicpm5"], rules: &[UP_TO_3_DIGITS, MINICPM5], ignore_merges: true, add_bos: false },
];

pub struct PreTokenizer {
    rules: Vec<(Regex, GiveBack)>,
    pub ignore_merges: bool,
    pub add_bos: bool,
}

impl PreTokenizer {
    pub fn named(name: &str) -> Result<Self> {
        let entry = TABLE.iter().find(|e| e.names.contains(&name)).ok_or_else(|| {
            let known: Vec<&str> = TABLE.iter().flat_map(|e| e.names.iter().copied()).collect();
            Error::unsupported(format!(
                "tokenizer.ggml.pre names the pre-tokenizer '{name}', which is not known; known are {}",
                known.join(", ")
            ))
        })?;
        let rules = entry
            .rules
            .iter()
            .map(|rule| (Regex::new(rule.pattern).expect("a pattern of the table compiles"), rule.give_back))
            .collect();
        Ok(PreTokenizer { rules, ignore_merges: entry.ignore_merges, add_bos: entry.add_bos })
    }

    /// The pieces of `text`, in order and without a gap.
    pub fn split<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let mut pieces = vec![text];
        for (regex, give_back) in &self.rules {
            let mut cut = Vec::with_capacity(pieces.len() * 2);
            for piece in pieces {
                split_piece(regex, *give_back, piece, &mut cut);
            }
            pieces = cut;
        }
        pieces
    }
}

fn split_piece<'a>(regex: &Regex, give_back: GiveBack, piece: &'a str, out: &mut Vec<&'a str>) {
    let mut at = 0;
    while let Some(found) = regex.find_at(piece, at) {
        if found.is_empty() {
            break;
        }
        if found.start() > at {
            out.push(&piece[at..found.start()]);
        }
        let end = found.end() - given_back(give_back, found.as_str(), found.end() == piece.len());
        out.push(&piece[found.start()..end]);
        at = end;
    }
    if at < piece.len() {
        out.push(&piece[at..]);
    }
}

/// How many bytes a match returns to what follows it.
fn given_back(rule: GiveBack, matched: &str, at_end: bool) -> usize {
    let Some(last) = matched.chars().next_back() else { return 0 };
    if rule == GiveBack::Never || at_end || matched.len() == last.len_utf8() || !last.is_whitespace() {
        return 0;
    }
    if rule == GiveBack::UnlessLineEnd && matches!(last, '\r' | '\n') {
        return 0;
    }
    if matched.chars().all(char::is_whitespace) {
        last.len_utf8()
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        PreTokenizer::named(name).unwrap().split(text)
    }

    #[test]
    fn every_pattern_compiles_and_loses_nothing() {
        let text = "Hello  world's 12345 naïve\n\n\t x += 1; 漢字かな  \r\n 'LL  ";
        for name in TABLE.iter().flat_map(|e| e.names) {
            assert_eq!(split(name, text).concat(), text, "{name}");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = TABLE.iter().flat_map(|e| e.names).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn unknown_name_is_an_error_that_names_it() {
        let error = PreTokenizer::named("no-such").err().unwrap();
        assert!(error.message.contains("no-such") && error.message.contains("qwen2"), "{}", error.message);
    }

    #[test]
    fn white_space_leaves_its_last_character_to_the_word() {
        assert_eq!(split("gpt-2", "a   b"), ["a", "  ", " b"]);
        assert_eq!(split("gpt-2", "a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(split("gpt-2", "a  "), ["a", "  "]);
        assert_eq!(split("llama-bpe", "a\n\nb"), ["a", "\n\n", "b"]);
        assert_eq!(split("llama-bpe", "a \n  b"), ["a", " \n", " ", " b"]);
        assert_eq!(split("llama-bpe", "x\u{3000}\u{3000}y"), ["x", "\u{3000}", "\u{3000}y"]);
    }

    #[test]
    fn digits_are_cut_as_the_name_says() {
        assert_eq!(split("smollm", "a 123"), ["a", " ", "1", "2", "3"]);
        assert_eq!(split("qwen2", "12345"), ["1", "2", "3", "4", "5"]);
        assert_eq!(split("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(split("gpt-2", "a 12345"), ["a", " 12345"]);
    }

    #[test]
    fn contractions_ignore_case_where_the_pattern_says_so() {
        assert_eq!(split("llama-bpe", "IT'S"), ["IT", "'S"]);
        assert_eq!(split("gpt-2", "IT'S"), ["IT", "'", "S"]);
        assert_eq!(split("gpt-4o", "It's"), ["It's"]);
    }
}
