//! A tokenizer from a tokenizer.json in the Hugging Face format: encoding by the tokenizers crate, decoding by pieces.
//!
//! The decoder of the file is read once and turned into one piece per token, so that decoding a token costs the same
//! wherever it stands. Truncation and padding settings of the file are ignored: a prompt is encoded whole.

use crate::error::{Error, Result};
use crate::vocab::{byte_of_char, fallback_byte, LeadingSpace, NameIndex, StringTable, Vocab, HOLE, SPECIAL};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::{
    DecoderWrapper, Model, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Token,
    TokenizerImpl,
};

/// Ids may have gaps, but a file does not decide alone how much memory its tables take.
const MAX_GAP: usize = 1 << 20;

/// One model behind two tokenizers that differ in whether special tokens are found in the text.
#[derive(Clone)]
struct SharedModel(Arc<ModelWrapper>);

impl<'de> Deserialize<'de> for SharedModel {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut model = ModelWrapper::deserialize(deserializer)?;
        // Dropout leaves out merges at random, which is for training: one text must give one list of ids.
        if let ModelWrapper::BPE(bpe) = &mut model {
            bpe.dropout = None;
        }
        Ok(SharedModel(Arc::new(model)))
    }
}

impl Model for SharedModel {
    type Trainer = <ModelWrapper as Model>::Trainer;
    fn tokenize(&self, sequence: &str) -> tokenizers::Result<Vec<Token>> {
        self.0.tokenize(sequence)
    }
    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }
    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }
    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.get_vocab()
    }
    fn get_vocab_size(&self) -> usize {
        self.0.get_vocab_size()
    }
    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.0.save(folder, prefix)
    }
    fn get_trainer(&self) -> Self::Trainer {
        self.0.get_trainer()
    }
}

type Pipeline =
    TokenizerImpl<SharedModel, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

pub struct HubTokenizer {
    pub vocab: Vocab,
    /// Finds special tokens in the text.
    parsing: Pipeline,
    /// Takes them for ordinary text.
    literal: Pipeline,
}

impl HubTokenizer {
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let unreadable = |e: serde_json::Error| Error::corrupt(format!("tokenizer.json cannot be read: {e}"));
        // The crate panics on some files that are not even JSON.
        serde_json::from_slice::<serde::de::IgnoredAny>(json).map_err(unreadable)?;
        let mut parsing: Pipeline = serde_json::from_slice(json).map_err(unreadable)?;
        parsing.with_padding(None);
        parsing.with_truncation(None).map_err(|e| Error::corrupt(format!("tokenizer.json: {e}")))?;
        let vocab = read_vocab(&parsing)?;
        let mut literal = parsing.clone();
        literal.set_encode_special_tokens(true);
        Ok(HubTokenizer { vocab, parsing, literal })
    }

    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let pipeline = if parse_special { &self.parsing } else { &self.literal };
        let encoding = pipeline
            .encode_fast(text, add_special)
            .map_err(|e| Error::invalid(format!("the text cannot be tokenised: {e}")))?;
        // A post-processor adds ids of its own, which nothing has checked.
        let count = self.vocab.names.count();
        match encoding.get_ids().iter().find(|&&id| id as usize >= count) {
            Some(id) => {
                Err(Error::corrupt(format!("tokenizer.json's post_processor adds the id {id}; there are {count}")))
            }
            None => Ok(encoding.get_ids().to_vec()),
        }
    }
}

fn read_vocab(pipeline: &Pipeline) -> Result<Vocab> {
    let by_name = pipeline.get_vocab(true);
    let end = by_name.values().max().map_or(0, |&id| id as usize + 1);
    if end == 0 || end > by_name.len() + MAX_GAP {
        return Err(Error::corrupt(format!("tokenizer.json names {} tokens, with ids below {end}", by_name.len())));
    }
    let mut by_id: Vec<Option<&str>> = vec![None; end];
    for (name, &id) in &by_name {
        by_id[id as usize] = Some(name);
    }
    // An added token speaks for its id, whatever the model calls it.
    let added = pipeline.get_added_vocabulary().get_added_tokens_decoder();
    for (&id, token) in added {
        by_id[id as usize] = Some(&token.content);
    }

    let decoder = PieceDecoder::new(pipeline.get_decoder())?;
    let mut vocab = Vocab {
        names: StringTable::with_capacity(end),
        pieces: StringTable::with_capacity(end),
        flags: Vec::with_capacity(end),
        index: NameIndex::with_capacity(by_name.len()),
        leading_space: decoder.leading_space,
        bos: None,
        eos: None,
        unk: None,
        pad: None,
        end_ids: Vec::new(),
    };
    for (id, name) in by_id.into_iter().enumerate() {
        let special = added.get(&(id as u32)).is_some_and(|token| token.special);
        vocab.names.push(name.unwrap_or("").as_bytes())?;
        vocab.pieces.push(&name.map_or_else(Vec::new, |name| decoder.piece(name)))?;
        vocab.flags.push(if name.is_none() {
            HOLE
        } else if special {
            SPECIAL
        } else {
            0
        });
        if name.is_some() {
            vocab.index.insert(&vocab.names, id as u32);
        }
    }
    Ok(vocab)
}

enum Step {
    Replace { from: String, to: String },
    ByteFallback,
    ByteLevel,
    Strip { content: char, start: usize, stop: usize },
}

/// The decoder of a tokenizer.json as a function of one token.
struct PieceDecoder {
    steps: Vec<Step>,
    leading_space: LeadingSpace,
}

impl PieceDecoder {
    fn new(decoder: Option<&DecoderWrapper>) -> Result<Self> {
        let decoder = decoder.ok_or_else(|| Error::unsupported("tokenizer.json has no decoder"))?;
        let json =
            serde_json::to_value(decoder).map_err(|e| Error::corrupt(format!("tokenizer.json: decoder: {e}")))?;
        let mut this = PieceDecoder { steps: Vec::new(), leading_space: LeadingSpace::Keep };
        let mut fused = false;
        let single = [json.clone()];
        let parts = match json["type"].as_str() {
            Some("Sequence") => json["decoders"].as_array().map_or(&[][..], Vec::as_slice),
            _ => &single[..],
        };
        for part in parts {
            this.add(part, &mut fused)?;
        }
        Ok(this)
    }

    fn add(&mut self, part: &serde_json::Value, fused: &mut bool) -> Result<()> {
        let kind = part["type"].as_str().unwrap_or("");
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let number = |key: &str| part[key].as_u64().unwrap_or(0) as usize;
        match kind {
            "ByteLevel" => self.steps.push(Step::ByteLevel),
            "ByteFallback" => self.steps.push(Step::ByteFallback),
            "Fuse" => *fused = true,
            "Replace" if part["pattern"]["String"].is_string() => {
                let from = text(&part["pattern"]["String"]).unwrap_or_default();
                self.steps.push(Step::Replace { from, to: text(&part["content"]).unwrap_or_default() });
            }
            "Metaspace" => {
                let from = text(&part["replacement"]).unwrap_or_else(|| "▁".into());
                self.steps.push(Step::Replace { from, to: " ".into() });
                if part["prepend_scheme"] != "never" {
                    self.leading_space = LeadingSpace::DropAll;
                }
            }
            // On the fused text, a Strip of the start concerns the first token alone.
            "Strip" if *fused && part["content"] == " " && number("start") == 1 && number("stop") == 0 => {
                self.leading_space = LeadingSpace::DropOne;
            }
            "Strip" if !*fused => {
                let content = part["content"].as_str().and_then(|s| s.chars().next()).unwrap_or(' ');
                self.steps.push(Step::Strip { content, start: number("start"), stop: number("stop") });
            }
            _ => {
                return Err(Error::unsupported(format!(
                    "tokenizer.json has the decoder {part}; ByteLevel, ByteFallback, Metaspace, Replace of a string, Fuse and \
                     Strip are supported"
                )))
            }
        }
        Ok(())
    }

    fn piece(&self, name: &str) -> Vec<u8> {
        let mut text = name.to_owned();
        for step in &self.steps {
            match step {
                Step::Replace { from, to } => text = text.replace(from, to),
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return vec![byte];
                    }
                }
                // A name outside the alphabet, as added tokens have, stands for itself.
                Step::ByteLevel => {
                    return match text.chars().map(byte_of_char).collect::<Option<Vec<u8>>>() {
                        Some(bytes) => bytes,
                        None => text.into_bytes(),
                    }
                }
                Step::Strip { content, start, stop } => {
                    for _ in 0..*start {
                        text = text.strip_prefix(*content).map(str::to_owned).unwrap_or(text);
                    }
                    for _ in 0..*stop {
                        text = text.strip_suffix(*content).map(str::to_owned).unwrap_or(text);
                    }
                }
            }
        }
        text.into_bytes()
    }
}
