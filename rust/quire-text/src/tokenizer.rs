//! Either kind of tokenizer, behind one face.

use crate::error::Result;
use crate::gguf::{GgufMetadata, GgufTokenizer};
use crate::hub::HubTokenizer;
use crate::vocab::Vocab;

pub enum Tokenizer {
    Gguf(Box<GgufTokenizer>),
    Hub(Box<HubTokenizer>),
}

// Shared between the threads that tokenise.
const _: () = {
    const fn shareable<T: Send + Sync>() {}
    shareable::<Tokenizer>();
    shareable::<crate::template::ChatTemplate>();
};

impl Tokenizer {
    pub fn from_json(json: &[u8]) -> Result<Self> {
        HubTokenizer::from_json(json).map(|t| Tokenizer::Hub(Box::new(t)))
    }

    pub fn from_gguf(meta: &GgufMetadata) -> Result<Self> {
        GgufTokenizer::new(meta).map(|t| Tokenizer::Gguf(Box::new(t)))
    }

    pub fn vocab(&self) -> &Vocab {
        match self {
            Tokenizer::Gguf(t) => &t.vocab,
            Tokenizer::Hub(t) => &t.vocab,
        }
    }

    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        match self {
            Tokenizer::Gguf(t) => t.encode(text, add_special, parse_special),
            Tokenizer::Hub(t) => t.encode(text, add_special, parse_special),
        }
    }
}
