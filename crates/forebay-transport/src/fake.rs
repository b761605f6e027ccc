//! A service behind programmable delays, losses and deaths.
