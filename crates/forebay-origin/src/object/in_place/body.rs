//! The body of an answer, read from its connection right into the buffer of whoever wants it.

use std::fmt;
use std::sync::Arc;

use object_store::client::HttpError;

use super::connection::{Connection, ended, http_error};
use super::pool::{Pool, Target};

/// How much is read at a time at most, so that what came is still in the processor's cache when it is summed.
const PIECE: usize = 256 << 10;

/// A body that is still on its connection. Dropped before its end, it closes it.
pub(crate) struct Body {
    connection: Connection,
    length: u64,
    /// Where the connection goes at its end; `None`: nowhere, it closes.
    home: Option<(Arc<Pool>, Target)>,
}

impl Body {
    pub(super) fn new(connection: Connection, length: u64, home: Option<(Arc<Pool>, Target)>) -> Self {
        Self { connection, length, home }
    }

    /// How many bytes it has.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Reads it into `into`, which is as long as it is. Each time that more of it came, `advanced` is called with all that came.
    ///
    /// # Errors
    /// When the connection breaks or the server is silent for too long.
    pub(crate) async fn read(self, into: &mut [u8], mut advanced: impl FnMut(&[u8]) + Send) -> Result<(), HttpError> {
        let Self { mut connection, home, .. } = self;
        let mut filled = 0;
        while filled < into.len() {
            let end = (filled + PIECE).min(into.len());
            match connection.read(&mut into[filled..end]).await.map_err(http_error)? {
                0 => return Err(http_error(ended(&format!("after {filled} bytes of {}", into.len())))),
                count => filled += count,
            }
            advanced(&into[..filled]);
        }
        if let Some((pool, target)) = home.filter(|_| connection.is_between_answers()) {
            pool.put(&target, connection);
        }
        Ok(())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("length", &self.length).finish_non_exhaustive()
    }
}
