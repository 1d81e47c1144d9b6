#!/bin/sh
# Create the buckets, and one user with its policy per kind of job. MC_HOST_store has the keys of the administrator.
set -eu
for bucket in lake landing published; do
    mc mb --ignore-existing "store/$bucket"
done
for user in ingest services publish; do
    case "$user" in
        ingest) password=$INGEST_PASSWORD ;;
        services) password=$SERVICES_PASSWORD ;;
        publish) password=$PUBLISH_PASSWORD ;;
    esac
    mc admin policy create store "$user" "/policies/$user.json"
    mc admin user add store "$user" "$password"
    mc admin policy attach store "$user" --user "$user" || mc admin user info store "$user"
done
