//! A tokenizer from the metadata of a GGUF file: byte-level BPE (`gpt2`) and SentencePiece-style BPE (`llama`).
//!
//! The judge is llama.cpp. Two things differ on purpose: text never merges into a control or byte token, and a control token is
//! text only where the caller asks for special tokens to be recognised.

use crate::error::{Error, Result};
use crate::merge::{MergeRule, Merger, Symbol, NO_ID};
use crate::pretokenize::PreTokenizer;
use crate::specials::{Fragment, SpecialMatcher};
use crate::vocab::{
    byte_level_bytes, char_of_byte, fallback_byte, LeadingSpace, NameIndex, StringTable, Vocab, SPECIAL,
};
use ahash::AHashMap;

/// The metadata, as the file has it. `None` means that the key is absent.
#[derive(Default)]
pub struct GgufMetadata<'a> {
    pub model: &'a str,
    pub pre: &'a str,
    pub tokens: Vec<&'a [u8]>,
    pub scores: &'a [f32],
    pub token_types: &'a [i32],
    pub merges: Vec<&'a [u8]>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub pad: Option<u32>,
    pub eot: Option<u32>,
    pub eom: Option<u32>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_space_prefix: Option<bool>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Tokens that end a turn or a text in the models of the field. Some files type them as ordinary text; they are control
/// tokens all the same.
const END_TOKENS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
];

enum Rules {
    ByteLevel {
        pre: PreTokenizer,
        byte_ids: Box<[u32; 256]>,
        merges: AHashMap<u64, (u32, u32)>,
        whole: AHashMap<Box<[u8]>, u32>,
    },
    SentencePiece {
        rank: Vec<u32>,
        longest: usize,
        byte_ids: Box<[u32; 256]>,
        add_space_prefix: bool,
    },
}

pub struct GgufTokenizer {
    pub vocab: Vocab,
    kinds: Vec<Kind>,
    all_specials: SpecialMatcher,
    user_defined: SpecialMatcher,
    rules: Rules,
    add_bos: Option<u32>,
    add_eos: Option<u32>,
}

impl GgufTokenizer {
    pub fn new(meta: &GgufMetadata) -> Result<Self> {
        let byte_level = match meta.model {
            "gpt2" => true,
            "llama" => false,
            other => {
                return Err(Error::unsupported(format!(
                    "tokenizer.ggml.model is '{other}'; 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) are supported"
                )))
            }
        };
        let names = read_names(meta)?;
        let kinds = read_kinds(meta, &names)?;
        let mut index = NameIndex::with_capacity(names.count());
        for id in 0..names.count() as u32 {
            if names.get(id).is_empty() {
                continue;
            }
            if let Some(other) = index.insert(&names, id) {
                return Err(Error::corrupt(format!("tokenizer.ggml.tokens has the same text at {other} and {id}")));
            }
        }

        let text = |id: u32| std::str::from_utf8(names.get(id)).expect("checked by read_names");
        let pieces = pieces_of(&kinds, byte_level, text)?;
        let mut vocab = Vocab {
            flags: kinds.iter().map(|k| if matches!(k, Kind::Control | Kind::Unknown) { SPECIAL } else { 0 }).collect(),
            leading_space: LeadingSpace::Keep,
            bos: special_id(meta.bos, "bos", if byte_level { None } else { Some(1) }, names.count())?,
            eos: special_id(meta.eos, "eos", if byte_level { None } else { Some(2) }, names.count())?,
            unk: special_id(meta.unk, "unknown", if byte_level { None } else { Some(0) }, names.count())?,
            pad: special_id(meta.pad, "padding", None, names.count())?,
            end_ids: Vec::new(),
            names,
            pieces,
            index,
        };
        vocab.end_ids = end_ids(meta, &vocab)?;

        let (rules, add_bos) = if byte_level {
            let pre = PreTokenizer::named(if meta.pre.is_empty() { "default" } else { meta.pre })?;
            let add_bos = pre.add_bos;
            (byte_level_rules(meta, &vocab, &kinds, pre)?, add_bos)
        } else {
            let add_space_prefix = meta.add_space_prefix.unwrap_or(true);
            if add_space_prefix {
                vocab.leading_space = LeadingSpace::DropOne;
            }
            (sentence_piece_rules(meta, &vocab, &kinds, add_space_prefix)?, true)
        };

        let matcher = |wanted: &dyn Fn(Kind) -> bool| {
            let ids = (0..kinds.len() as u32).filter(|&id| wanted(kinds[id as usize]));
            SpecialMatcher::new(ids.map(|id| (vocab.names.get(id), id)))
        };
        Ok(GgufTokenizer {
            all_specials: matcher(&|k| matches!(k, Kind::Control | Kind::Unknown | Kind::UserDefined)),
            user_defined: matcher(&|k| k == Kind::UserDefined),
            add_bos: added(meta.add_bos.unwrap_or(add_bos), vocab.bos, "bos")?,
            add_eos: added(meta.add_eos.unwrap_or(false), vocab.eos, "eos")?,
            kinds,
            rules,
            vocab,
        })
    }

    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        if text.len() >= NO_ID as usize {
            return Err(Error::new(crate::error::Status::TooLarge, "the text is longer than 4 GiB"));
        }
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if add_special {
            ids.extend(self.add_bos);
        }
        let matcher = if parse_special { &self.all_specials } else { &self.user_defined };
        let mut merger = Merger::default();
        let mut after_special = true;
        for fragment in matcher.partition(text) {
            match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    after_special = true;
                }
                Fragment::Text(text) => {
                    match &self.rules {
                        Rules::ByteLevel { .. } => self.encode_byte_level(text, &mut merger, &mut ids)?,
                        Rules::SentencePiece { .. } => {
                            self.encode_sentence_piece(text, after_special, &mut merger, &mut ids)?
                        }
                    }
                    after_special = false;
                }
            }
        }
        if add_special {
            ids.extend(self.add_eos);
        }
        Ok(ids)
    }

    fn encode_byte_level(&self, text: &str, merger: &mut Merger, ids: &mut Vec<u32>) -> Result<()> {
        let Rules::ByteLevel { pre, byte_ids, merges, whole } = &self.rules else { return Ok(()) };
        for piece in pre.split(text) {
            if let Some(&id) = whole.get(piece.as_bytes()) {
                ids.push(id);
                continue;
            }
            let symbols = piece.bytes().enumerate().map(|(i, byte)| Symbol {
                start: i as u32,
                len: 1,
                id: byte_ids[byte as usize],
            });
            let mut missing = None;
            merger.run(&ByRank { merges }, symbols, |symbol| match symbol.id {
                NO_ID => missing = Some(piece.as_bytes()[symbol.start as usize]),
                id => ids.push(id),
            });
            missing.map_or(Ok(()), no_token_for)?;
        }
        Ok(())
    }

    fn encode_sentence_piece(&self, text: &str, first: bool, merger: &mut Merger, ids: &mut Vec<u32>) -> Result<()> {
        let Rules::SentencePiece { rank, longest, byte_ids, add_space_prefix } = &self.rules else { return Ok(()) };
        let mut escaped = String::with_capacity(text.len() + text.len() / 2 + 3);
        if *add_space_prefix && first {
            escaped.push('▁');
        }
        for c in text.chars() {
            escaped.push(if c == ' ' { '▁' } else { c });
        }

        let rule = ByScore { tokenizer: self, text: &escaped, rank, longest: *longest };
        let symbols = escaped.char_indices().map(|(start, c)| {
            let len = c.len_utf8();
            let id = self.ordinary_id(&escaped.as_bytes()[start..start + len]).unwrap_or(NO_ID);
            Symbol { start: start as u32, len: len as u32, id }
        });
        let mut missing = None;
        merger.run(&rule, symbols, |symbol| {
            if symbol.id != NO_ID {
                ids.push(symbol.id);
                return;
            }
            // A character that is no token becomes its bytes.
            for &byte in &escaped.as_bytes()[symbol.start as usize..(symbol.start + symbol.len) as usize] {
                match byte_ids[byte as usize] {
                    NO_ID => missing = Some(byte),
                    id => ids.push(id),
                }
            }
        });
        missing.map_or(Ok(()), no_token_for)
    }

    /// The id of a token that text may turn into.
    fn ordinary_id(&self, name: &[u8]) -> Option<u32> {
        self.vocab
            .token_id(name)
            .filter(|&id| !matches!(self.kinds[id as usize], Kind::Control | Kind::Unknown | Kind::Byte))
    }
}

struct ByRank<'a> {
    merges: &'a AHashMap<u64, (u32, u32)>,
}

impl MergeRule for ByRank<'_> {
    fn joined(&self, left: Symbol, right: Symbol) -> Option<(u32, u32)> {
        self.merges.get(&pair(left.id, right.id)).copied()
    }
}

struct ByScore<'a> {
    tokenizer: &'a GgufTokenizer,
    text: &'a str,
    rank: &'a [u32],
    longest: usize,
}

impl MergeRule for ByScore<'_> {
    fn joined(&self, left: Symbol, right: Symbol) -> Option<(u32, u32)> {
        let len = (left.len + right.len) as usize;
        if len > self.longest {
            return None;
        }
        let start = left.start as usize;
        let id = self.tokenizer.ordinary_id(&self.text.as_bytes()[start..start + len])?;
        Some((self.rank[id as usize], id))
    }
}

fn no_token_for(byte: u8) -> Result<()> {
    Err(Error::invalid(format!("the text has the byte {byte:#04x}, which this model's vocabulary cannot express")))
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

fn read_names(meta: &GgufMetadata) -> Result<StringTable> {
    if meta.tokens.is_empty() || meta.tokens.len() >= NO_ID as usize {
        return Err(Error::corrupt(format!("tokenizer.ggml.tokens has {} entries", meta.tokens.len())));
    }
    let mut names = StringTable::with_capacity(meta.tokens.len());
    for (id, token) in meta.tokens.iter().enumerate() {
        if std::str::from_utf8(token).is_err() {
            return Err(Error::corrupt(format!("tokenizer.ggml.tokens[{id}] is not valid UTF-8")));
        }
        names.push(token)?;
    }
    Ok(names)
}

fn read_kinds(meta: &GgufMetadata, names: &StringTable) -> Result<Vec<Kind>> {
    let count = names.count();
    if !meta.token_types.is_empty() && meta.token_types.len() != count {
        return Err(Error::corrupt(format!(
            "tokenizer.ggml.token_type has {} entries for {count} tokens",
            meta.token_types.len()
        )));
    }
    let mut kinds = vec![Kind::Normal; count];
    for (kind, &number) in kinds.iter_mut().zip(meta.token_types) {
        *kind = match number {
            1 => Kind::Normal,
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            6 => Kind::Byte,
            _ => Kind::Unused,
        };
    }
    for (id, kind) in kinds.iter_mut().enumerate() {
        if END_TOKENS.iter().any(|t| t.as_bytes() == names.get(id as u32)) {
            *kind = Kind::Control;
        }
    }
    Ok(kinds)
}

fn pieces_of<'a>(kinds: &[Kind], byte_level: bool, text: impl Fn(u32) -> &'a str) -> Result<StringTable> {
    let mut pieces = StringTable::with_capacity(kinds.len());
    for (id, kind) in kinds.iter().enumerate() {
        let name = text(id as u32);
        match kind {
            Kind::Control | Kind::Unknown | Kind::UserDefined => pieces.push(name.as_bytes())?,
            Kind::Byte => {
                let byte = fallback_byte(name).ok_or_else(|| {
                    Error::corrupt(format!(
                        "tokenizer.ggml.tokens[{id}] '{name}' is a byte token, but not of the form <0xE2>"
                    ))
                })?;
                pieces.push(&[byte])?;
            }
            Kind::Normal | Kind::Unused if byte_level => match byte_level_bytes(name) {
                Some(bytes) => pieces.push(&bytes)?,
                None => pieces.push(name.as_bytes())?,
            },
            Kind::Normal | Kind::Unused => pieces.push(name.replace('▁', " ").as_bytes())?,
        }
    }
    Ok(pieces)
}

fn special_id(given: Option<u32>, what: &str, default: Option<u32>, count: usize) -> Result<Option<u32>> {
    match given {
        Some(id) if id as usize >= count => {
            Err(Error::corrupt(format!("tokenizer.ggml.{what}_token_id is {id}, but there are {count} tokens")))
        }
        Some(id) => Ok(Some(id)),
        None => Ok(default.filter(|&id| (id as usize) < count)),
    }
}

fn added(wanted: bool, id: Option<u32>, what: &str) -> Result<Option<u32>> {
    if wanted && id.is_none() {
        return Err(Error::corrupt(format!(
            "tokenizer.ggml.add_{what}_token is set, but there is no tokenizer.ggml.{what}_token_id"
        )));
    }
    Ok(id.filter(|_| wanted))
}

fn end_ids(meta: &GgufMetadata, vocab: &Vocab) -> Result<Vec<u32>> {
    let count = vocab.names.count();
    let mut ids: Vec<u32> = END_TOKENS.iter().filter_map(|t| vocab.token_id(t.as_bytes())).collect();
    ids.extend(vocab.eos);
    ids.extend(special_id(meta.eot, "eot", None, count)?);
    ids.extend(special_id(meta.eom, "eom", None, count)?);
    // Harmony: <|end|> ends a message, and the answer goes on.
    let has = |name: &str| vocab.token_id(name.as_bytes()).is_some();
    if has("<|return|>") && has("<|call|>") {
        let message_end = vocab.token_id(b"<|end|>");
        ids.retain(|&id| Some(id) != message_end);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn byte_level_rules(meta: &GgufMetadata, vocab: &Vocab, kinds: &[Kind], pre: PreTokenizer) -> Result<Rules> {
    let mut byte_ids = Box::new([NO_ID; 256]);
    for byte in 0..=255u8 {
        let name = char_of_byte(byte).to_string();
        byte_ids[byte as usize] = vocab.token_id(name.as_bytes()).or(vocab.unk).unwrap_or(NO_ID);
    }

    let mut merges = AHashMap::with_capacity(meta.merges.len());
    for (rank, merge) in meta.merges.iter().enumerate() {
        let ids = merge_ids(vocab, merge).ok_or_else(|| {
            let merge = String::from_utf8_lossy(merge);
            Error::corrupt(format!("tokenizer.ggml.merges[{rank}] '{merge}' does not join two tokens to a third"))
        })?;
        merges.entry(pair(ids.0, ids.1)).or_insert((rank as u32, ids.2));
    }

    let mut whole = AHashMap::new();
    if pre.ignore_merges {
        for id in (0..kinds.len() as u32).filter(|&id| kinds[id as usize] == Kind::Normal) {
            whole.insert(Box::from(vocab.pieces.get(id)), id);
        }
    }
    Ok(Rules::ByteLevel { pre, byte_ids, merges, whole })
}

fn merge_ids(vocab: &Vocab, merge: &[u8]) -> Option<(u32, u32, u32)> {
    // The first character is part of the left half even if it is a space.
    let at = 1 + merge.get(1..)?.iter().position(|&b| b == b' ')?;
    let (left, right) = (&merge[..at], &merge[at + 1..]);
    Some((vocab.token_id(left)?, vocab.token_id(right)?, vocab.token_id(&[left, right].concat())?))
}

fn sentence_piece_rules(meta: &GgufMetadata, vocab: &Vocab, kinds: &[Kind], add_space_prefix: bool) -> Result<Rules> {
    let count = vocab.names.count();
    if meta.scores.len() != count {
        return Err(Error::corrupt(format!(
            "tokenizer.ggml.scores has {} entries for {count} tokens",
            meta.scores.len()
        )));
    }
    if let Some(id) = meta.scores.iter().position(|s| s.is_nan()) {
        return Err(Error::corrupt(format!("tokenizer.ggml.scores[{id}] is not a number")));
    }
    // Equal scores share a rank: among them the leftmost pair is joined first.
    let mut order: Vec<u32> = (0..count as u32).collect();
    order.sort_by(|&a, &b| meta.scores[b as usize].total_cmp(&meta.scores[a as usize]));
    let mut rank = vec![0; count];
    let mut current = 0;
    for (i, &id) in order.iter().enumerate() {
        if i > 0 && meta.scores[id as usize] != meta.scores[order[i - 1] as usize] {
            current += 1;
        }
        rank[id as usize] = current;
    }

    let mut byte_ids = Box::new([vocab.unk.unwrap_or(NO_ID); 256]);
    for id in 0..count as u32 {
        if kinds[id as usize] == Kind::Byte {
            byte_ids[vocab.pieces.get(id)[0] as usize] = id;
        }
    }
    let longest = (0..count as u32).map(|id| vocab.names.get(id).len()).max().unwrap_or(0);
    Ok(Rules::SentencePiece { rank, longest, byte_ids, add_space_prefix })
}
