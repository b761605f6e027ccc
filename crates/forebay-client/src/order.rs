//! The names of a directory in an order in which programs open its files. Pure.
//!
//! Most programs open them in the order of the listing. `cp -r` sorts the names by their inode numbers first, which is
//! the faster way on a disk. The numbers of a mount are hashes, so that order has nothing of the listing's; it is known
//! once the mount has told the numbers of all names ([`ListedName::known_number`]).

use std::sync::Arc;

use crate::listed::{ListedName, Page};
use crate::walk::{Name, Names};

/// A page, and the position of its first name in the listing.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) start: u64,
    pub(crate) page: Arc<Page>,
}

impl Held {
    /// The position after its last name.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.page.names().len() as u64
    }
}

/// An order of names.
#[derive(Debug)]
pub(crate) enum Order {
    /// That of the listing.
    Listing,
    /// That of inode numbers: each with the page of the name, and where in it that is.
    Numbers(Vec<(u64, u32, u32)>),
}

impl Order {
    /// That of inode numbers, if all names of the directory are there, and have one.
    pub(crate) fn of_numbers(pages: &[Held]) -> Option<Self> {
        let is_whole = pages.first()?.start == 0 && pages.last()?.page.next().is_none();
        let names = pages
            .iter()
            .zip(0..)
            .flat_map(|(held, page)| held.page.names().iter().zip(0..).map(move |(name, at)| (name, page, at)));
        let numbers = names.map(|(name, page, at)| Some((name.known_number()?, page, at)));
        let mut numbers: Vec<(u64, u32, u32)> = numbers.collect::<Option<Vec<_>>>().filter(|_| is_whole)?;
        numbers.sort_unstable();
        Some(Self::Numbers(numbers))
    }

    /// The page, and where in it, of the name at a position.
    pub(crate) fn place(&self, pages: &[Held], position: u64) -> Option<(usize, usize)> {
        match self {
            Self::Listing => {
                let page = pages.iter().position(|held| (held.start..held.end()).contains(&position))?;
                // Within the page.
                Some((page, (position - pages[page].start) as usize))
            }
            Self::Numbers(numbers) => {
                let (_, page, at) = numbers.get(usize::try_from(position).ok()?)?;
                Some((*page as usize, *at as usize))
            }
        }
    }

    /// The position of a name.
    pub(crate) fn position(&self, pages: &[Held], (page, at): (usize, usize)) -> Option<u64> {
        let held = pages.get(page)?;
        match self {
            Self::Listing => Some(held.start + at as u64),
            Self::Numbers(numbers) => {
                // They are fewer than fit into 32 bits.
                let wanted = (held.page.names().get(at)?.known_number()?, page as u32, at as u32);
                numbers.binary_search(&wanted).ok().map(|position| position as u64)
            }
        }
    }
}

/// The names of a directory as a walk looks at them.
pub(crate) struct InOrder<'a> {
    pub(crate) order: &'a Order,
    pub(crate) pages: &'a [Held],
    /// The largest small file.
    pub(crate) small: u64,
    pub(crate) is_here: &'a dyn Fn(&ListedName) -> bool,
}

impl InOrder<'_> {
    fn name(&self, position: u64) -> Option<&ListedName> {
        let (page, at) = self.order.place(self.pages, position)?;
        self.pages.get(page)?.page.names().get(at)
    }
}

impl Names for InOrder<'_> {
    fn at(&self, position: u64) -> Option<Name> {
        let entry = self.name(position)?.entry();
        Some(match entry.attr.version() {
            Some(version) if (1..=self.small).contains(&version.size) => {
                Name::Small { bytes: version.size, ending: ending(&entry.name) }
            }
            _ => Name::Other,
        })
    }

    fn is_here(&self, position: u64) -> bool {
        self.name(position).is_some_and(|name| (self.is_here)(name))
    }
}

/// What a name ends with: up to eight bytes after its last dot.
pub(crate) fn ending(name: &[u8]) -> u64 {
    let Some(dot) = name.iter().rposition(|byte| *byte == b'.') else { return 0 };
    name[dot..].iter().take(8).fold(0, |ending, byte| (ending << 8) | u64::from(*byte))
}
