#!/bin/sh
# Makes the secrets of compose.yaml, once: sh deploy/secrets.sh
# The folder is its owner's alone. The files in it can be read by all, since containers have users of their own.
set -eu
folder="$(dirname "$0")/secrets"
if [ -e "$folder" ]; then
    echo "$folder is there already, and is left as it is." >&2
    exit 1
fi
random() { head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n'; }
umask 077
mkdir "$folder"
database="$(random)"
bucket="$(random)"
printf '%s' "$database" > "$folder/postgres-password"
printf 'postgresql://tempopt:%s@postgres/tempopt\n' "$database" > "$folder/storage-url"
printf 'tempopt' > "$folder/minio-user"
printf '%s' "$bucket" > "$folder/minio-password"
printf '[default]\naws_access_key_id = tempopt\naws_secret_access_key = %s\n' "$bucket" > "$folder/s3-credentials"
chmod 644 "$folder"/*
