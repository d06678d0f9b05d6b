#!/bin/sh
# Makes an authority and the servers' certificate in ./certificates, for trying this out; in production use your own.
set -eu
cd "$(dirname "$0")"
mkdir -p certificates
cd certificates
[ ! -e ca.pem ] || { echo "certificates/ca.pem is there already" >&2; exit 1; }

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=tocsin compose" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign" -keyout ca.key -out ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=nats" -keyout server.key -out server.csr
cat > server.ext <<EXT
subjectAltName = DNS:nats-1, DNS:nats-2, DNS:nats-3, DNS:localhost, IP:127.0.0.1
extendedKeyUsage = serverAuth, clientAuth
EXT
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 825 -extfile server.ext -out server.pem
rm server.csr server.ext
chmod 644 server.key # the servers run as a user of their own
