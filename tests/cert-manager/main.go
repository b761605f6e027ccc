// Issues the certificates that Kubernetes manifests on standard input ask of cert-manager, without a Kubernetes.
//
// What is asked is read as strictly as an API server does, and issued by cert-manager's own code: what its controllers
// do with a Certificate, the CertificateRequest that follows from it, and an Issuer that signs itself or has an
// authority. A Secret becomes a directory, DIRECTORY/NAMESPACE/SECRET, that is written as the kubelet writes a volume:
// the files are links through `..data`, which is replaced as a whole.
//
//	cert-manager DIRECTORY [NAMESPACE/CERTIFICATE …] < manifests.yaml
//
// A Secret that is there stays; that of a certificate that is named is renewed. It prints a line for each that was
// issued: NAMESPACE/CERTIFICATE, and since when it is valid, when cert-manager would renew it, and until when, in
// seconds since 1970.
package main

import (
	"bufio"
	"cmp"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	apis "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/util/pki"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetes "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: cert-manager DIRECTORY [NAMESPACE/CERTIFICATE …] < manifests.yaml")
		os.Exit(2)
	}
	if err := issueAll(os.Stdin, secrets(os.Args[1]), os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "cert-manager:", err)
		os.Exit(1)
	}
}

// issueAll issues until nothing is left: an authority comes before those that it signs.
func issueAll(manifests io.Reader, secrets secrets, renewed []string) error {
	certificates, issuers, err := read(manifests)
	if err != nil {
		return err
	}
	for _, name := range renewed {
		if !slices.ContainsFunc(certificates, func(it apis.Certificate) bool { return nameOf(it.ObjectMeta) == name }) {
			return fmt.Errorf("no certificate %s", name)
		}
	}
	waiting := slices.DeleteFunc(certificates, func(it apis.Certificate) bool {
		return secrets.has(it.Namespace, it.Spec.SecretName) && !slices.Contains(renewed, nameOf(it.ObjectMeta))
	})
	for len(waiting) > 0 {
		var later []apis.Certificate
		for _, certificate := range waiting {
			issuer, found := issuers[certificate.Namespace+"/"+certificate.Spec.IssuerRef.Name]
			if !found || cmp.Or(certificate.Spec.IssuerRef.Kind, apis.IssuerKind) != apis.IssuerKind {
				return fmt.Errorf("%s: there is no such issuer in its namespace", nameOf(certificate.ObjectMeta))
			}
			if issuer.Spec.CA != nil && !secrets.has(issuer.Namespace, issuer.Spec.CA.SecretName) {
				later = append(later, certificate)
				continue
			}
			if err := issue(&certificate, issuer, secrets); err != nil {
				return fmt.Errorf("%s: %w", nameOf(certificate.ObjectMeta), err)
			}
		}
		if len(later) == len(waiting) {
			return fmt.Errorf("%s: the secret of its issuer is nobody's", nameOf(later[0].ObjectMeta))
		}
		waiting = later
	}
	return nil
}

func nameOf(object metav1.ObjectMeta) string { return object.Namespace + "/" + object.Name }

// read takes what is of cert-manager from the manifests. A field that cert-manager does not know is an error.
func read(manifests io.Reader) ([]apis.Certificate, map[string]apis.Issuer, error) {
	var certificates []apis.Certificate
	issuers := map[string]apis.Issuer{}
	documents := kubernetes.NewYAMLReader(bufio.NewReader(manifests))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return certificates, issuers, nil
		}
		var kind metav1.TypeMeta
		if err = errors.Join(err, yaml.Unmarshal(document, &kind)); err != nil {
			return nil, nil, err
		}
		var certificate apis.Certificate
		var issuer apis.Issuer
		switch kind.GroupVersionKind() {
		case apis.SchemeGroupVersion.WithKind(apis.CertificateKind):
			err = decode(document, &certificate)
			certificates = append(certificates, certificate)
		case apis.SchemeGroupVersion.WithKind(apis.IssuerKind):
			err = decode(document, &issuer)
			issuers[nameOf(issuer.ObjectMeta)] = issuer
		}
		if err != nil {
			return nil, nil, err
		}
	}
}

// decode takes letters for what they are, as an API server does and the JSON of Go does not.
func decode(document []byte, object any) error {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return err
	}
	unknown, err := json.UnmarshalStrict(text, object)
	return errors.Join(append(unknown, err)...)
}

// issue does what the controllers of cert-manager do, one after the other: the key, the request, the signature, the
// Secret.
func issue(certificate *apis.Certificate, issuer apis.Issuer, secrets secrets) error {
	key, err := privateKey(certificate, secrets)
	if err != nil {
		return err
	}
	template, err := requested(certificate, key)
	if err != nil {
		return err
	}
	bundle, err := sign(template, key, issuer, secrets)
	if err != nil {
		return err
	}
	var encoding apis.PrivateKeyEncoding
	if certificate.Spec.PrivateKey != nil {
		encoding = certificate.Spec.PrivateKey.Encoding
	}
	private, err := pki.EncodePrivateKey(key, encoding)
	if err != nil {
		return err
	}
	files := map[string][]byte{"tls.crt": bundle.ChainPEM, "tls.key": private, "ca.crt": bundle.CAPEM}
	if err := secrets.write(certificate.Namespace, certificate.Spec.SecretName, files); err != nil {
		return err
	}
	return tell(certificate, bundle.ChainPEM)
}

// privateKey is a new one, unless the certificate is one that keeps its key.
func privateKey(certificate *apis.Certificate, secrets secrets) (crypto.Signer, error) {
	key := certificate.Spec.PrivateKey
	keeps := key != nil && key.RotationPolicy == apis.RotationPolicyNever
	if keeps && secrets.has(certificate.Namespace, certificate.Spec.SecretName) {
		text, err := secrets.read(certificate.Namespace, certificate.Spec.SecretName, "tls.key")
		if err != nil {
			return nil, err
		}
		return pki.DecodePrivateKeyBytes(text)
	}
	return pki.GeneratePrivateKeyForCertificate(certificate)
}

// requested is what a CertificateRequest for the certificate asks for.
func requested(certificate *apis.Certificate, key crypto.Signer) (*x509.Certificate, error) {
	request, err := pki.GenerateCSR(certificate, pki.WithNameConstraints(true))
	if err != nil {
		return nil, err
	}
	der, err := pki.EncodeCSR(request, key)
	if err != nil {
		return nil, err
	}
	return pki.CertificateTemplateFromCertificateRequest(&apis.CertificateRequest{Spec: apis.CertificateRequestSpec{
		Request:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		Duration: certificate.Spec.Duration,
		Usages:   certificate.Spec.Usages,
		IsCA:     certificate.Spec.IsCA,
	}})
}

func sign(template *x509.Certificate, key crypto.Signer, issuer apis.Issuer, secrets secrets) (pki.PEMBundle, error) {
	switch {
	case issuer.Spec.SelfSigned != nil:
		own, _, err := pki.SignCertificate(template, template, key.Public(), key)
		return pki.PEMBundle{ChainPEM: own, CAPEM: own}, err
	case issuer.Spec.CA != nil:
		chain, authority, err := secrets.authority(issuer.Namespace, issuer.Spec.CA.SecretName)
		if err != nil {
			return pki.PEMBundle{}, err
		}
		return pki.SignCSRTemplate(chain, authority, template)
	default:
		return pki.PEMBundle{}, fmt.Errorf("issuer %s is of a kind that is not tried here", nameOf(issuer.ObjectMeta))
	}
}

func tell(certificate *apis.Certificate, chain []byte) error {
	made, err := pki.DecodeX509CertificateBytes(chain)
	if err != nil {
		return err
	}
	spec, from, until := certificate.Spec, made.NotBefore, made.NotAfter
	renewal, err := pki.RenewalTime(from, until, spec.RenewBefore, spec.RenewBeforePercentage, spec.Renewal)
	if err != nil {
		return err
	}
	fmt.Println(nameOf(certificate.ObjectMeta), from.Unix(), renewal.Unix(), until.Unix())
	return nil
}

// secrets is the directory of all Secrets.
type secrets string

func (it secrets) volume(namespace, name string) string {
	return filepath.Join(string(it), namespace, name)
}

func (it secrets) read(namespace, name, key string) ([]byte, error) {
	return os.ReadFile(filepath.Join(it.volume(namespace, name), key))
}

func (it secrets) has(namespace, name string) bool {
	_, err := os.Stat(filepath.Join(it.volume(namespace, name), "tls.key"))
	return err == nil
}

// authority is what an Issuer signs with: its certificate first, then those that signed it.
func (it secrets) authority(namespace, name string) ([]*x509.Certificate, crypto.Signer, error) {
	certificate, err := it.read(namespace, name, "tls.crt")
	if err != nil {
		return nil, nil, err
	}
	root, err := it.read(namespace, name, "ca.crt")
	if err != nil {
		return nil, nil, err
	}
	chain, err := pki.DecodeX509CertificateChainBytes(append(certificate, root...))
	if err != nil {
		return nil, nil, err
	}
	text, err := it.read(namespace, name, "tls.key")
	if err != nil {
		return nil, nil, err
	}
	key, err := pki.DecodePrivateKeyBytes(text)
	return chain, key, err
}

// write replaces the files of a volume all at once, as the kubelet does.
func (it secrets) write(namespace, name string, files map[string][]byte) error {
	volume := it.volume(namespace, name)
	if err := os.MkdirAll(volume, 0o755); err != nil {
		return err
	}
	current, err := os.MkdirTemp(volume, "..")
	if err != nil {
		return err
	}
	data := filepath.Join(volume, "..data")
	before, _ := os.Readlink(data)
	for key, text := range files {
		if err := os.WriteFile(filepath.Join(current, key), text, 0o400); err != nil {
			return err
		}
	}
	next := filepath.Join(volume, "..data_tmp")
	if err := errors.Join(os.Symlink(filepath.Base(current), next), os.Rename(next, data)); err != nil {
		return err
	}
	if before != "" {
		return os.RemoveAll(filepath.Join(volume, before))
	}
	for key := range files {
		if err := os.Symlink(filepath.Join("..data", key), filepath.Join(volume, key)); err != nil {
			return err
		}
	}
	return nil
}
