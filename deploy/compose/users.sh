#!/bin/sh
# Print new passwords of the variants celery.yml and separate-users.yml in the format of .env.
set -eu
for name in REDIS CATALOG S3_INGEST S3_SERVICES S3_PUBLISH; do
    echo "LAKEHOUSE_${name}_PASSWORD=$(python3 -c 'import secrets; print(secrets.token_hex(24))')"
done
