//! What holds for all states, and for all ways in which a hand-over can go wrong.

mod duel;
mod journals;
mod keepers;
mod memories;
mod sockets;
mod states;
