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
const LINE_END: Rule = plain(r"[\r\n]");
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
const YOUTU_SCRIPTS: Rule = plain(concat!(
    "[가-힣ㄱ-\u{318e}]+|[！…“”‘’—：；，、-\u{303f}\u{fe30}-\u{fe4f}]+",
    "|[\u{3105}-\u{312f}]+|[一-龥\u{3040}-ゟ゠-ヿ]+"
));
const YOUTU: Rule = lines(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
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

// Letters of alphabets that have cases. The marks' `:-~` holds those of Latin once more.
const DEEPSEEK_LETTERS: Rule = plain(concat!(
    "\\s?[",
    "A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}",
    "\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}",
    "\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}",
    "\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}",
    "\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}",
    "\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}",
    "\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}",
    "\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}",
    "\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}",
    "\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}",
    "\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}",
    "\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}",
    "\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}",
    "\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}",
    "\u{1e900}-\u{1e943}",
    "]+"
));
const DEEPSEEK_MARKS: Rule = plain("\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+");
const DEEPSEEK_CJK: Rule = plain("[一-龥\u{800}-一가-\u{d7ff}]+");

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
    entry(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    Entry { names: &["glm4", "glm5"], rules: &[LLAMA3], ignore_merges: true, add_bos: false },
    entry(
        &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"],
        &[QWEN2],
    ),
    entry(&["qwen35"], &[QWEN35]),
    entry(&["deepseek-v3", "hunyuan-dense", "joyai-llm"], &[UP_TO_3_DIGITS, CJK, DEEPSEEK3]),
    entry(&["deepseek-coder"], &[LINE_END, plain(r"\s?\p{L}+"), plain(r"\s?\p{P}+"), DEEPSEEK_CJK, DIGIT]),
    entry(
        &["deepseek-llm"],
        &[LINE_END, DEEPSEEK_LETTERS, DEEPSEEK_MARKS, plain(r"\s+$"), DEEPSEEK_CJK, plain(r"\p{N}+")],
    ),
    Entry { names: &["youtu"], rules: &[YOUTU_SCRIPTS, YOUTU], ignore_merges: true, add_bos: false },
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

    // What the `tokenizers` package makes of the same patterns, each a Split that isolates matches. `|` parts pieces.
    #[test]
    fn pieces_are_those_of_the_tokenizers_package() {
        let cases = [
            ("deepseek-llm", "Hello| | world|'|s| |12345| na|\u{ef}|ve|\n|\n|\t| x| +=| |1|;| |\u{6f22}\u{5b57}\u{304b}\u{306a}|  |\r|\n| '|LL|  "),
            ("deepseek-llm", "don|'|t| | stop|\u{3002}|\u{3053}\u{308c}\u{306f}|123|\u{3067}\u{3059}|  "),
            ("deepseek-llm", "a|\u{b5}\u{c0}| \u{416}\u{438}\u{437}\u{43d}\u{44c}|,| |\u{d55c}\u{ad6d}\u{c5b4}| \u{ff21}\u{ff22}\u{ff23}|\u{ff01}| x|=|1|.|5|e|3"),
            ("deepseek-llm", "\u{4f60}\u{597d}|\u{ff0c}|\u{4e16}\u{754c}|\u{ff01}| tabs|\t|\there|   |\n| | end"),
            ("deepseek-coder", "Hello| | world|'|s| |1|2|3|4|5| na\u{ef}ve|\n|\n|\t| x| += |1|;| |\u{6f22}\u{5b57}\u{304b}\u{306a}|  |\r|\n| '|LL|  "),
            ("deepseek-coder", "don|'|t| | stop|\u{3002}|\u{3053}\u{308c}\u{306f}|1|2|3|\u{3067}\u{3059}|  "),
            ("deepseek-coder", "a\u{b5}\u{c0}| \u{416}\u{438}\u{437}\u{43d}\u{44c}|,| |\u{d55c}\u{ad6d}\u{c5b4}| \u{ff21}\u{ff22}\u{ff23}|\u{ff01}| x|=|1|.|5|e|3"),
            ("deepseek-coder", "\u{4f60}\u{597d}|\u{ff0c}|\u{4e16}\u{754c}|\u{ff01}| tabs|\t|\there|   |\n| | end"),
            ("youtu", "Hello| | world's| |1|2|3|4|5| na\u{ef}ve|\n\n|\t| x| +=| |1|;| |\u{6f22}\u{5b57}\u{304b}\u{306a}|  \r\n| '|LL|  "),
            ("youtu", "don't| | stop|\u{3002}|\u{3053}\u{308c}\u{306f}|1|2|3|\u{3067}\u{3059}|  "),
            ("youtu", "a\u{b5}|\u{c0}| \u{416}\u{438}\u{437}\u{43d}\u{44c}|,| |\u{d55c}\u{ad6d}\u{c5b4}| \u{ff21}\u{ff22}\u{ff23}|\u{ff01}| x|=|1|.|5|e|3"),
            ("youtu", "\u{4f60}\u{597d}|\u{ff0c}|\u{4e16}\u{754c}|\u{ff01}| tabs|\t|\there|   \n| | end"),
        ];
        for (name, pieces) in cases {
            let pieces: Vec<&str> = pieces.split('|').collect();
            assert_eq!(split(name, &pieces.concat()), pieces, "{name}");
        }
    }
}
