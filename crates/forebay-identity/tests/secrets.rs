//! What a panic, an error or a log formats shows no secret: whatever in a process holds one.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant, SystemTime};

use forebay_identity::{
    ClusterKey, ClusterKeys, LiveIdentity, LiveTokens, Material, Pass, Passes, Peer, Scope, Trust, client_config,
    new_token, server_config,
};
use forebay_types::Role;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;

const HOUR: Duration = Duration::from_secs(3600);

/// A secret in the forms in which somebody could print it.
fn forms(secret: &[u8]) -> [String; 2] {
    let hexadecimal = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    [hexadecimal, format!("{secret:?}").trim_matches(['[', ']']).to_owned()]
}

#[test]
fn what_a_panic_formats_shows_no_key_pass_or_token() {
    let (key, token, now) = (ClusterKey::generate().unwrap(), new_token().unwrap(), SystemTime::now());
    let scope = Scope::new("example.org", "prod").unwrap();
    let authorities = Role::ALL.map(|role| key.authority(&scope, role).unwrap().certificate().clone());
    let trust = Trust::new(scope.clone(), &authorities, []).unwrap();
    let worker = key.authority(&scope, Role::Worker).unwrap();
    let credentials = worker.issue("node1", now - HOUR, now + HOUR).unwrap();
    let private = PrivateKeyDer::from_pem_slice(credentials.key_pem().as_bytes()).unwrap().secret_der().to_vec();
    let (pem, key_pem) = (credentials.key_pem(), key.to_pem());
    let of_credentials = format!("{credentials:?}");
    let live = LiveIdentity::new(Material::new(credentials, trust, now).unwrap());

    let pass = Pass::random().unwrap();
    let mut passes = Passes::default();
    let peer = Peer { identity: live.material().identity().clone(), until: now + HOUR, authority: None };
    passes.issue(7, pass, peer, Instant::now()).unwrap();

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cluster.key");
    // An error is told of half of a key.
    std::fs::write(&path, &key_pem[..key_pem.len() / 2]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let refused = ClusterKeys::read(&path).unwrap_err();
    let configurations = (client_config(&live, &[b"x"]).unwrap(), server_config(&live, &[b"x"]).unwrap());
    let tokens = LiveTokens::only(&token, Role::Admin);
    let said = format!(
        "{key:?} {of_credentials} {live:?} {pass:?} {passes:?} {refused} {refused:?} {configurations:?} {tokens:?}"
    );
    assert!(said.contains("Pass") && said.contains("node1"), "{said}");

    let lines = |pem: &str| pem.lines().filter(|line| !line.starts_with('-')).map(str::to_owned).collect::<Vec<_>>();
    let mut secrets = [lines(&pem), lines(&key_pem), vec![token.to_string()]].concat();
    // The private number of a key of P-256 lies within; what is around it is the same in each.
    secrets.extend(forms(&private[36..52]));
    secrets.extend([pass.client, pass.server].into_iter().flat_map(|half| [half.to_string(), format!("{half:x}")]));
    for secret in secrets {
        assert!(!said.contains(&secret), "a secret is in {said}");
    }
}
