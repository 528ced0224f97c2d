# Known answers of OpenSSL's digests and ciphers, keys made, used and refused.
set -euo pipefail
is() { [ "$1" = "$2" ] || { echo "$3: $1 instead of $2"; exit 1; }; }
digest() { printf abc | openssl dgst "-$1" -r | cut -d' ' -f1; }
is "$(digest sha1)" a9993e364706816aba3e25717850c26c9cd0d89d SHA-1
is "$(digest sha256)" ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad SHA-256
is "$(digest sha3-256)" 3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532 SHA3-256
is "$(digest blake2s256)" 508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982 BLAKE2s
# FIPS 197, appendix C.1 and C.3.
plain=00112233445566778899aabbccddeeff key=000102030405060708090a0b0c0d0e0f
aes() { printf "$(echo $plain | sed 's/../\\x&/g')" | openssl enc "-aes-$1-ecb" -nopad -K "$2" | od -An -tx1 | tr -d ' \n'; }
is "$(aes 128 $key)" 69c4e0d86a7b0430d8cdb78070b4c55a AES-128
is "$(aes 256 ${key}101112131415161718191a1b1c1d1e1f)" 8ea2b7ca516745bfeafc49904b496089 AES-256
head -c 3000000 /dev/urandom >plain.bin
for cipher in aes-256-ctr aes-128-cbc chacha20 camellia-256-cbc; do
    openssl enc "-$cipher" -pbkdf2 -k secret -in plain.bin -out cipher.bin
    openssl enc -d "-$cipher" -pbkdf2 -k secret -in cipher.bin | cmp - plain.bin
done
openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out rsa.pem
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out ec.pem
openssl genpkey -algorithm ED25519 -out ed.pem
for name in rsa ec; do
    openssl pkey -in $name.pem -pubout -out $name.pub
    openssl dgst -sha256 -sign $name.pem -out sig plain.bin
    openssl dgst -sha256 -verify $name.pub -signature sig plain.bin
    ! openssl dgst -sha256 -verify $name.pub -signature sig /checks/openssl.sh
done
openssl pkeyutl -sign -rawin -inkey ed.pem -in /checks/openssl.sh -out sig
openssl pkey -in ed.pem -pubout -out ed.pub
openssl pkeyutl -verify -rawin -pubin -inkey ed.pub -in /checks/openssl.sh -sigfile sig
openssl rsa -in rsa.pem -check -noout
is "$(openssl prime -hex FFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF | grep -c 'is prime')" 1 prime
openssl req -x509 -new -key ec.pem -subj /CN=satori -days 1 -out cert.pem
openssl verify -CAfile cert.pem cert.pem
