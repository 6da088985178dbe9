#!/bin/sh
# Puts the users' passwords where Airflow's simple auth manager may write, then becomes the command.
# FRENZY_AIRFLOW_PASSWORDS: a JSON object of user to password, from a secret; unset where another auth manager is used.
set -eu
if [ -n "${FRENZY_AIRFLOW_PASSWORDS:-}" ]; then
  umask 077
  file="${TMPDIR:-/tmp}/airflow-passwords.json"
  printf '%s' "$FRENZY_AIRFLOW_PASSWORDS" >"$file"
  export AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE="$file"
  unset FRENZY_AIRFLOW_PASSWORDS
fi
# The Helm chart passes a shell's -c line or a bare airflow sub-command; all else is run as it is.
exec "$@"
