//! Grammars that an answer must follow, through llguidance: a Vocabulary (the tokens as a trie of bytes, one a model)
//! compiles texts into Grammars, a Grammar starts Matchers, and a Matcher says for one answer which tokens may come next.
//!
//! All limits count steps and sizes, never time. A Matcher owns all that it learns about its grammar, so that what it
//! says, and whether it reaches a limit, depends on its own tokens alone.

use crate::error::{Error, Result, Status};
use crate::vocab::{Vocab, HOLE, SPECIAL};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::ParserFactory;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, INVALID_TOKEN};

/// What decides masks, for fingerprints. A test compares it with Cargo.lock.
pub const ENGINE: &str = "llguidance 1.9.1";

/// What a grammar's text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    /// A JSON schema.
    JsonSchema = 0,
    /// A regular expression for the whole answer.
    Regex = 1,
    /// A JSON list of strings, of which the answer is one.
    Choice = 2,
    /// A grammar in llguidance's variant of Lark.
    Lark = 3,
}

impl Kind {
    pub fn from_number(number: i32) -> Result<Self> {
        [Kind::JsonSchema, Kind::Regex, Kind::Choice, Kind::Lark]
            .into_iter()
            .find(|&kind| kind as i32 == number)
            .ok_or_else(|| Error::new(Status::Internal, format!("there is no kind {number} of grammars")))
    }
}

/// Rules may name each other and nest: what compiles them recurses, on a stack that is large enough for a text of
/// MOST_TEXT bytes.
const MOST_TEXT: usize = 1 << 20; // of schemas and choices
const MOST_CODE: usize = 1 << 16; // of regular expressions and Lark
/// Of one object of a schema: compiling takes time that grows with their square, and a parser's row holds no more.
const MOST_PROPERTIES: usize = 450;
const MOST_PROPERTIES_IN_ALL: usize = 4096;
const COMPILER_STACK: usize = 256 << 20;
const LONGEST_MESSAGE: usize = 400;

fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_items_in_row: 2_000,
        max_lexer_states: 10_000, // of some KiB
        max_grammar_size: 100_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// What llguidance says without its dumps of state, on one line and bounded.
fn explain(error: &impl Display) -> String {
    let text = format!("{error:#}");
    let what = match text.split("\n<").next().unwrap_or("") {
        "NoExtensionBias" => "no token of the model can come next",
        // It counts in 16 bits, and stops where they end.
        other if other.starts_with("panic:") => "it is larger than what can be compiled",
        other => other,
    };
    let line = what.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut message: String = line.chars().take(LONGEST_MESSAGE).collect();
    if message.len() < line.len() {
        message.push_str("...");
    }
    message
}

fn refused(error: impl Display) -> Error {
    Error::invalid(explain(&error))
}

pub struct Vocabulary {
    factory: ParserFactory,
}

impl Vocabulary {
    /// For a model with `size` tokens, `end_ids` among them. Special tokens and those that the tokenizer does not know
    /// are no text: only a Lark grammar can name them.
    pub fn build(vocab: &Vocab, end_ids: &[u32], size: usize) -> Result<Self> {
        if size == 0 || size >= INVALID_TOKEN as usize || end_ids.iter().any(|&id| id as usize >= size) {
            return Err(Error::new(
                Status::Internal,
                format!("a vocabulary of {size} tokens cannot hold the end tokens"),
            ));
        }
        let known = vocab.flags.len();
        let word = |id: usize| -> Vec<u8> {
            if id >= known || vocab.flags[id] & HOLE != 0 {
                return Vec::new();
            }
            let at = id as u32;
            if vocab.flags[id] & SPECIAL != 0 || end_ids.contains(&at) {
                return [&[TokTrie::SPECIAL_TOKEN_MARKER], vocab.names.get(at)].concat();
            }
            let piece = vocab.pieces.get(at);
            // No text has this byte, and llguidance takes it for the mark of a special token.
            if piece.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                return Vec::new();
            }
            piece.to_vec()
        };
        let words: Vec<Vec<u8>> = (0..size).map(word).collect();
        let info = TokRxInfo::new(size as u32, end_ids.first().copied().unwrap_or(INVALID_TOKEN));
        let mut trie = TokTrie::from(&info, &words);
        if !end_ids.is_empty() {
            trie = trie.with_eos_tokens(end_ids);
        }
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(refused)?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Vocabulary { factory })
    }

    /// InvalidInput says what does not compile, or which limit it meets.
    pub fn compile(&self, kind: Kind, text: &str) -> Result<Grammar> {
        let most = if matches!(kind, Kind::Lark | Kind::Regex) { MOST_CODE } else { MOST_TEXT };
        if text.len() > most {
            return Err(Error::new(Status::TooLarge, format!("it has {} bytes; at most {most} are taken", text.len())));
        }
        let grammar = top_level(kind, text)?;
        let compiled = std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().stack_size(COMPILER_STACK);
            let worker = builder.spawn_scoped(scope, || self.factory.create_parser(grammar));
            worker
                .map_err(|e| Error::new(Status::Internal, format!("no thread to compile it: {e}")))?
                .join()
                .map_err(|_| Error::new(Status::Internal, "the compiler failed"))
        })?;
        let words = self.factory.tok_env().tok_trie().vocab_size().div_ceil(32);
        let mut first = Matcher { inner: llguidance::Matcher::new(Ok(compiled.map_err(refused)?)), words };
        // A grammar that no answer can follow is refused here, and not in the middle of an answer.
        first.mask(&mut vec![0; words])?;
        Ok(Grammar { first: Mutex::new(first) })
    }
}

/// Errors where objects have too many properties, wherever they stand.
fn check_properties(value: &serde_json::Value, in_all: &mut usize) -> Result<()> {
    let inner: Vec<&serde_json::Value> = match value {
        serde_json::Value::Array(items) => items.iter().collect(),
        serde_json::Value::Object(members) => {
            let count = members.get("properties").and_then(|p| p.as_object()).map_or(0, |p| p.len());
            *in_all += count;
            if count > MOST_PROPERTIES || *in_all > MOST_PROPERTIES_IN_ALL {
                let message = format!(
                    "its objects have too many properties; one may have {MOST_PROPERTIES}, all together {MOST_PROPERTIES_IN_ALL}"
                );
                return Err(Error::new(Status::TooLarge, message));
            }
            members.values().collect()
        }
        _ => return Ok(()),
    };
    inner.into_iter().try_for_each(|value| check_properties(value, in_all))
}

fn top_level(kind: Kind, text: &str) -> Result<TopLevelGrammar> {
    let json_error = |e: serde_json::Error| Error::invalid(format!("it is not valid JSON: {e}"));
    Ok(match kind {
        Kind::JsonSchema => {
            let schema = serde_json::from_str(text).map_err(json_error)?;
            check_properties(&schema, &mut 0)?;
            TopLevelGrammar::from_json_schema(schema)
        }
        Kind::Regex => TopLevelGrammar::from_regex(text),
        Kind::Choice => {
            let choices: Vec<String> = serde_json::from_str(text).map_err(json_error)?;
            let escaped: Vec<String> = choices.iter().map(|c| regex::escape(c)).collect();
            TopLevelGrammar::from_regex(&escaped.join("|"))
        }
        Kind::Lark => TopLevelGrammar::from_lark(text.to_owned()),
    })
}

/// Compiled once; any number of threads may start matchers at the same time.
pub struct Grammar {
    first: Mutex<Matcher>,
}

impl Grammar {
    pub fn start(&self) -> Matcher {
        let first = self.first.lock().unwrap_or_else(|e| e.into_inner());
        Matcher { inner: first.inner.deep_clone(), words: first.words }
    }
}

/// One answer's place in its grammar. One thread at a time.
pub struct Matcher {
    inner: llguidance::Matcher,
    words: usize,
}

const _: () = {
    const fn shareable<T: Send + Sync>() {}
    const fn movable<T: Send>() {}
    shareable::<Vocabulary>();
    shareable::<Grammar>();
    movable::<Matcher>();
};

impl Matcher {
    /// Bit i % 32 of word i / 32 says whether token i may come next; end tokens where the grammar may end.
    pub fn mask(&mut self, into: &mut [u32]) -> Result<()> {
        if into.len() != self.words {
            return Err(Error::new(Status::Internal, format!("the mask has {} words, not {}", into.len(), self.words)));
        }
        let mask = self.inner.compute_mask().map_err(refused)?;
        into.copy_from_slice(&mask.as_slice()[..self.words]);
        Ok(())
    }

    /// Goes on by a token of the mask. True if the answer ends with it: nothing may follow.
    pub fn accept(&mut self, token: u32) -> Result<bool> {
        self.inner.consume_token(token).map_err(refused)?;
        Ok(self.inner.is_stopped())
    }

    /// Takes back the latest `tokens` tokens.
    pub fn rollback(&mut self, tokens: usize) -> Result<()> {
        self.inner.rollback(tokens).map_err(refused)
    }
}
