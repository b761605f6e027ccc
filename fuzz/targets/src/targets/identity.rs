//! Identities: names, the files that say who is believed, certificates that strangers show, and passes.

use std::time::{Duration, Instant, SystemTime};

use forebay_identity::{Identity, Pass, PassError, Passes, Peer, Scope};
use forebay_types::Role;

use crate::input::{Input, Output};
use crate::targets::Seed;

fn scope() -> Scope {
    Scope::new("forebay", "prod").expect("both are names")
}

fn identity(role: Role, name: &str) -> Identity {
    scope().identity(role, name).expect("it is a name")
}

pub(super) mod identities {
    use super::*;
    use forebay_identity::fuzzing::{cluster_keys, denied, name, tokens};

    /// Most files of tokens.
    const FILES: usize = 3;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let kind = input.u8();
        if kind % 4 == 2 {
            return token_files(input);
        }
        let Ok(text) = str::from_utf8(input.rest()) else { return };
        match kind % 4 {
            0 => name(text),
            1 => denied(text),
            _ => cluster_keys(text),
        }
    }

    fn token_files(mut input: Input<'_>) {
        let mut files = Vec::new();
        for _ in 0..usize::from(input.u8()) % (FILES + 1) {
            let role = Role::ALL[usize::from(input.u8()) % Role::ALL.len()];
            let Ok(text) = str::from_utf8(input.piece()) else { return };
            files.push((text, role));
        }
        let Ok(shown) = str::from_utf8(input.rest()) else { return };
        tokens(&files, shown);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let seed = |kind: u8, text: &str| Output::default().u8(kind).bytes(text).done();
        let listed = "# who left\nspiffe://forebay/forebay/prod/reader/team-a # in May\n\n\
                      spiffe://forebay/forebay/prod/worker/w1\n";
        let (admin, next) = ("0123456789abcdef0123456789abcdef", "ABCDEFGHIJKLMNOPQRSTUVWXYZ-._~+/=");
        let files = Output::default().u8(2).u8(2).u8(2).piece(format!("# old\n{admin}\n")).u8(5).piece(next);
        let key = "-----BEGIN FOREBAY CLUSTER KEY-----\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n\
                   -----END FOREBAY CLUSTER KEY-----\n";
        vec![
            ("name", seed(0, "spiffe://gpu.example.org/forebay/prod-1/worker/node_7.rack-2")),
            ("no_name", seed(0, "spiffe://a\nb/forebay/prod/wor\u{1b}ker/n")),
            ("denied", seed(1, listed)),
            ("tokens", files.bytes(admin).done()),
            ("cluster_key", seed(3, key)),
            ("two_cluster_keys", seed(3, &key.repeat(2))),
        ]
    }
}

pub(super) mod certificates {
    use super::*;
    use forebay_identity::fuzzing::{certificate_file, trust, verify};
    use forebay_identity::{Side, Trust};

    /// Most changes of a certificate, and most certificates of a chain.
    const MAX: usize = 8;
    /// When certificates are judged: in 2026.
    const NOW: Duration = Duration::from_secs(1_767_225_600);

    const AUTHORITIES: [&[u8]; 2] =
        [include_bytes!("certificates/authority_worker.der"), include_bytes!("certificates/authority_reader.der")];
    /// Certificates that members of the cluster show, and others who are not believed; all but the first two are.
    const SHOWN: [(&str, &[u8]); 9] = [
        ("worker", include_bytes!("certificates/worker.der")),
        ("reader", include_bytes!("certificates/reader.der")),
        ("denied", include_bytes!("certificates/denied.der")),
        ("expired", include_bytes!("certificates/expired.der")),
        ("of_another_role", include_bytes!("certificates/of_another_role.der")),
        ("of_another_cluster", include_bytes!("certificates/of_another_cluster.der")),
        ("with_two_names", include_bytes!("certificates/with_two_names.der")),
        ("of_a_stranger", include_bytes!("certificates/of_a_stranger.der")),
        ("with_a_line_break", include_bytes!("certificates/with_a_line_break.der")),
    ];

    /// Who may be believed, by what they show.
    fn members() -> [(&'static [u8], Identity); 2] {
        [(SHOWN[0].1, identity(Role::Worker, "w1")), (SHOWN[1].1, identity(Role::Reader, "team-a"))]
    }

    fn believing() -> Trust {
        trust(scope(), &AUTHORITIES, [identity(Role::Reader, "team-b")]).expect("both are authorities")
    }

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let kind = input.u8();
        let side = if kind & 8 == 0 { Side::Client } else { Side::Server };
        match kind % 4 {
            0 => changed(input, side),
            1 => chain(input, side),
            2 => authority(input),
            _ => {
                if let Ok(text) = str::from_utf8(input.rest()) {
                    certificate_file(text);
                }
            }
        }
    }

    /// Only those who are members are believed, and only as they are: nobody can show another name than the one that was signed.
    fn is_judged(chain: &[&[u8]], side: Side) {
        let members = members();
        let shown = chain.first().and_then(|first| members.iter().find(|(certificate, _)| certificate == first));
        let judged = verify(&believing(), chain, side, SystemTime::UNIX_EPOCH + NOW);
        assert_eq!(judged.ok().map(|peer| peer.identity), shown.map(|(_, identity)| identity.clone()));
    }

    /// A certificate with some bytes changed.
    fn changed(mut input: Input<'_>, side: Side) {
        let mut certificate = SHOWN[usize::from(input.u8()) % SHOWN.len()].1.to_vec();
        for _ in 0..MAX {
            if input.is_empty() {
                break;
            }
            let (at, flip) = (usize::from(input.u16()), input.u8());
            if let Some(byte) = certificate.get_mut(at) {
                *byte ^= flip;
            }
        }
        is_judged(&[&certificate], side);
    }

    fn chain(mut input: Input<'_>, side: Side) {
        let mut chain = Vec::new();
        while !input.is_empty() && chain.len() < MAX {
            chain.push(input.piece());
        }
        is_judged(&chain, side);
    }

    /// An authority that is one, or none. Whoever it speaks for, it is nobody who is denied.
    fn authority(input: Input<'_>) {
        let denied = identity(Role::Reader, "team-b");
        let Ok(trust) = trust(scope(), &[input.rest()], [denied]) else { return };
        for (name, certificate) in SHOWN {
            let judged = verify(&trust, &[certificate], Side::Client, SystemTime::UNIX_EPOCH + NOW);
            let may_be_believed = !["denied", "expired", "of_another_cluster", "with_two_names"].contains(&name);
            assert!(judged.is_err() || may_be_believed, "{name}");
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let shown = (0..).zip(SHOWN).map(|(at, (name, _))| (name, Output::default().u8(0).u8(at).done()));
        let mut seeds: Vec<Seed> = shown.collect();
        let one_changed = Output::default().u8(8).u8(0).u16(200).u8(1).done();
        let in_a_chain = Output::default().u8(1).piece(SHOWN[1].1).piece(AUTHORITIES[1]).done();
        let pem = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        seeds.extend([
            ("changed", one_changed),
            ("chain", in_a_chain),
            ("authority", Output::default().u8(2).bytes(AUTHORITIES[1]).done()),
            ("file", Output::default().u8(3).bytes(pem).done()),
        ]);
        seeds
    }
}

pub(super) mod passes {
    use super::*;

    /// Most steps.
    const STEPS: usize = 64;
    /// Passes that are given at once, so that bounds are reached.
    const MANY: usize = 700;
    /// How long a pass lasts, as RDMA's clients are told.
    const LIFETIME: Duration = Duration::from_secs(10);

    const NAMES: [&str; 3] = ["team-a", "team-b", "team-c"];

    /// A pass that was given, as whoever gave it would write it down.
    #[derive(Clone, Copy, Debug)]
    struct Given {
        client_id: u64,
        pass: Pass,
        /// Whose name it is.
        name: usize,
        at: Instant,
    }

    /// Connections of one client id that were let in, and said no hello yet: at least and at most, since which pass one came with is
    /// not said, and passes expire.
    #[derive(Clone, Copy, Debug, Default)]
    struct LetIn {
        min: usize,
        max: usize,
    }

    #[derive(Debug, Default)]
    struct Model {
        given: Vec<Given>,
        let_in: [LetIn; 4],
    }

    impl Model {
        fn live(&self, client_id: u64) -> usize {
            self.given.iter().filter(|given| given.client_id == client_id).count()
        }

        fn expire(&mut self, now: Instant) {
            for (client_id, let_in) in (0..).zip(&mut self.let_in) {
                let is_of = |given: &&Given| given.client_id == client_id;
                let before = self.given.iter().filter(is_of).count();
                let over = self.given.iter().filter(is_of).filter(|given| now >= given.at + LIFETIME).count();
                *let_in = LetIn { min: let_in.min.saturating_sub(over), max: let_in.max.min(before - over) };
            }
            self.given.retain(|given| now < given.at + LIFETIME);
        }

        fn issued(&mut self, given: Given, told: Result<(), PassError>) {
            let of_one = self.given.iter().filter(|other| other.name == given.name).count();
            match told {
                Ok(()) => {
                    assert!(given.client_id != 0);
                    self.given.push(given);
                }
                Err(PassError::ClientId) => assert_eq!(given.client_id, 0),
                Err(PassError::Full(max)) => assert_eq!(self.given.len(), max),
                Err(PassError::FullOfOne(max)) => assert_eq!(of_one, max),
                Err(PassError::Random) => unreachable!("nothing was drawn"),
            }
        }

        fn arrived(&mut self, client_id: u64, is_let_in: bool) {
            let live = self.live(client_id);
            let let_in = &mut self.let_in[client_id as usize];
            if is_let_in {
                assert!(let_in.min < live, "one connection for each pass");
                *let_in = LetIn { min: let_in.min + 1, max: let_in.max.min(live - 1) + 1 };
            } else {
                assert!(let_in.max >= live, "a pass waits, and nobody came with it");
                *let_in = LetIn { min: live, max: live };
            }
        }

        fn redeemed(&mut self, client_id: u64, client: u64, got: Option<(Pass, Peer)>) {
            let is_this = |given: &Given| given.client_id == client_id && given.pass.client == client;
            let expected = self.given.iter().position(is_this).map(|at| self.given.remove(at));
            assert_eq!(got, expected.map(|given| (given.pass, peer(given.name))));
            if expected.is_some() {
                let LetIn { min, max } = self.let_in[client_id as usize];
                self.let_in[client_id as usize] = LetIn { min: min.saturating_sub(1), max: max.saturating_sub(1) };
            }
        }
    }

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let whole = input.array::<16>();
        assert_eq!(Pass::decode(&whole).map(|pass| pass.encode()), Some(whole));
        assert_eq!(Pass::decode(input.rest()).is_some(), input.rest().len() == whole.len());
        let (mut passes, mut model, mut now) = (Passes::default(), Model::default(), Instant::now());
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            let (step, number) = (input.u8(), u64::from(input.u8() % 8));
            let client_id = u64::from(step >> 3 & 3);
            let name = usize::from(step >> 5) % NAMES.len();
            let given = Given { client_id, pass: Pass { client: number, server: !number }, name, at: now };
            match step & 7 {
                0 | 1 => {
                    let _ = issue(&mut passes, &mut model, given);
                }
                2 | 3 => {
                    let is_let_in = passes.arrive(client_id, now);
                    model.arrived(client_id, is_let_in);
                }
                4 | 5 => model.redeemed(client_id, number, passes.redeem(client_id, number, now)),
                6 => {
                    now += Duration::from_millis(number * 1500);
                    model.expire(now);
                }
                _ => {
                    // When one is refused, so is the next.
                    let all = (0..MANY).all(|_| issue(&mut passes, &mut model, given).is_ok());
                    assert!(all || client_id == 0 || model.given.len() > MANY, "there is room for some");
                }
            }
        }
    }

    fn peer(name: usize) -> Peer {
        Peer { identity: identity(Role::Reader, NAMES[name]), until: SystemTime::UNIX_EPOCH, authority: None }
    }

    fn issue(passes: &mut Passes, model: &mut Model, given: Given) -> Result<(), PassError> {
        let told = passes.issue(given.client_id, given.pass, peer(given.name), given.at);
        model.issued(given, told);
        told
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let step = |what: u8, client_id: u8, peer: u8| what | client_id << 3 | peer << 5;
        let steps = |steps: &[(u8, u8, u8, u8)]| {
            let output = Output::default().u64(1).u64(2);
            let each = |output: Output, (what, client_id, peer, number): &(u8, u8, u8, u8)| {
                output.u8(step(*what, *client_id, *peer)).u8(*number)
            };
            steps.iter().fold(output, each).done()
        };
        vec![
            (
                "one_connection",
                steps(&[(0, 1, 0, 1), (2, 1, 0, 0), (2, 1, 0, 0), (4, 1, 0, 2), (4, 1, 0, 1), (4, 1, 0, 1)]),
            ),
            (
                "in_any_order",
                steps(&[(0, 1, 0, 1), (0, 1, 1, 2), (2, 1, 0, 0), (4, 1, 0, 2), (2, 1, 0, 0), (4, 1, 0, 1)]),
            ),
            ("expires", steps(&[(0, 1, 0, 1), (2, 1, 0, 0), (6, 0, 0, 7), (4, 1, 0, 1), (2, 1, 0, 0)])),
            ("no_client", steps(&[(0, 0, 0, 1), (2, 0, 0, 0), (4, 0, 0, 1)])),
            (
                "full",
                steps(&[
                    (7, 1, 0, 1),
                    (7, 2, 0, 1),
                    (7, 3, 0, 1),
                    (7, 1, 1, 1),
                    (7, 2, 1, 1),
                    (7, 3, 1, 1),
                    (7, 1, 2, 1),
                ]),
            ),
        ]
    }
}
