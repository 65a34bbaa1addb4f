//! The tables that both tokenizer kinds share: for each id its name (the vocabulary's own spelling), its piece (the bytes
//! it adds to the text) and its kind.
//!
//! All strings of a table lie in one block of memory, so that C++ reads a token's bytes without a call.

use crate::error::{Error, Result};
use hashbrown::HashTable;

/// `skip_special` leaves such a token out of the text: BOS, end of turn, unknown.
pub const SPECIAL: u8 = 1;
/// The id is inside the vocabulary's range, but names no token.
pub const HOLE: u8 = 2;

/// How the first token of a whole text loses the space that the encoder put before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LeadingSpace {
    Keep = 0,
    DropOne = 1,
    DropAll = 2,
}

#[derive(Default)]
pub struct StringTable {
    pub bytes: Vec<u8>,
    /// One more than there are strings; string i is bytes[offsets[i]..offsets[i + 1]].
    pub offsets: Vec<u32>,
}

impl StringTable {
    pub fn with_capacity(count: usize) -> Self {
        let mut offsets = Vec::with_capacity(count + 1);
        offsets.push(0);
        StringTable { bytes: Vec::with_capacity(count * 6), offsets }
    }
    pub fn push(&mut self, value: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(value);
        let end = u32::try_from(self.bytes.len())
            .map_err(|_| Error::corrupt("the vocabulary's strings are longer than 4 GiB together"))?;
        self.offsets.push(end);
        Ok(())
    }
    pub fn count(&self) -> usize {
        self.offsets.len() - 1
    }
    pub fn get(&self, i: u32) -> &[u8] {
        let i = i as usize;
        &self.bytes[self.offsets[i] as usize..self.offsets[i + 1] as usize]
    }
}

/// Finds an id by its name, without a second copy of the names.
pub struct NameIndex {
    hasher: ahash::RandomState,
    ids: HashTable<u32>,
}

impl NameIndex {
    pub fn with_capacity(count: usize) -> Self {
        // Fixed seeds: the keys come from a model's file, and the index answers only for equal names.
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        NameIndex { hasher, ids: HashTable::with_capacity(count) }
    }
    /// Returns the id that already has this name, if one does.
    pub fn insert(&mut self, names: &StringTable, id: u32) -> Option<u32> {
        let name = names.get(id);
        let hash = self.hasher.hash_one(name);
        if let Some(&present) = self.ids.find(hash, |&other| names.get(other) == name) {
            return Some(present);
        }
        self.ids.insert_unique(hash, id, |&other| self.hasher.hash_one(names.get(other)));
        None
    }
    pub fn find(&self, names: &StringTable, name: &[u8]) -> Option<u32> {
        self.ids.find(self.hasher.hash_one(name), |&id| names.get(id) == name).copied()
    }
}

pub struct Vocab {
    pub names: StringTable,
    pub pieces: StringTable,
    pub flags: Vec<u8>,
    pub index: NameIndex,
    pub leading_space: LeadingSpace,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub pad: Option<u32>,
    /// Every id that ends a generation by the model's own account, ascending.
    pub end_ids: Vec<u32>,
}

impl Vocab {
    pub fn token_id(&self, name: &[u8]) -> Option<u32> {
        self.index.find(&self.names, name)
    }
}

/// GPT-2's reversible spelling of bytes: printable Latin-1 characters stand for themselves, the other 68 bytes for the
/// characters from U+0100 on.
pub fn byte_of_char(c: char) -> Option<u8> {
    use std::sync::OnceLock;
    static TABLE: OnceLock<Vec<Option<u8>>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut table = vec![None; 256 + 68];
        for byte in 0..=255u8 {
            table[char_of_byte(byte) as usize] = Some(byte);
        }
        table
    });
    table.get(c as usize).copied().flatten()
}

pub fn char_of_byte(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return byte as char;
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + rank).expect("U+0100 to U+0143 are characters")
}

/// The bytes a byte-level name stands for; None where a character stands for no byte.
pub fn byte_level_bytes(name: &str) -> Option<Vec<u8>> {
    name.chars().map(byte_of_char).collect()
}

/// The byte that `<0xE2>` names.
pub fn fallback_byte(name: &str) -> Option<u8> {
    let hex = name.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_alphabet_is_a_bijection() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of_char(char_of_byte(byte)), Some(byte));
        }
        assert_eq!(char_of_byte(b' '), 'Ġ');
        assert_eq!(char_of_byte(b'\n'), 'Ċ');
        assert_eq!(char_of_byte(0xad), 'Ń');
        assert_eq!(byte_of_char('漢'), None);
    }

    #[test]
    fn fallback_bytes_need_the_whole_form() {
        assert_eq!(fallback_byte("<0xE2>"), Some(0xe2));
        for other in ["<0xE>", "<0xE2", "<0x+2>", "0xE2", "<0xE21>"] {
            assert_eq!(fallback_byte(other), None, "{other}");
        }
    }

    #[test]
    fn index_finds_names_and_reports_duplicates() {
        let mut names = StringTable::with_capacity(3);
        let mut index = NameIndex::with_capacity(3);
        for (id, name) in ["a", "b", "a"].iter().enumerate() {
            names.push(name.as_bytes()).unwrap();
            assert_eq!(index.insert(&names, id as u32), if id == 2 { Some(0) } else { None });
        }
        assert_eq!(index.find(&names, b"b"), Some(1));
        assert_eq!(index.find(&names, b"c"), None);
    }
}
