//! Declares every setting once. The commented `.env`, the reference page and the errors about invalid values are
//! generated from these declarations.

/// A group of related variables.
#[derive(Debug)]
pub struct Group {
    pub title: &'static str,
    pub variables: &'static [Variable],
}

#[derive(Debug)]
pub struct Variable {
    pub name: &'static str,
    /// Completes the sentence "expected ...".
    pub accepts: &'static str,
    /// The default, as a user would write it.
    pub default: &'static str,
    /// The meaning of an empty value, if the default is empty.
    pub when_empty: &'static str,
    pub help: &'static str,
    /// Its value is never shown.
    pub secret: bool,
}

const fn variable(
    name: &'static str,
    accepts: &'static str,
    default: &'static str,
    help: &'static str,
) -> Variable {
    Variable { name, accepts, default, when_empty: "", help, secret: false }
}

impl Variable {
    const fn when_empty(self, when_empty: &'static str) -> Variable {
        Variable { when_empty, ..self }
    }

    const fn secret(self) -> Variable {
        Variable { secret: true, ..self }
    }
}

/// The declaration of a variable.
pub(super) fn declared(name: &str) -> Option<&'static Variable> {
    GROUPS.iter().flat_map(|group| group.variables).find(|variable| variable.name == name)
}

/// Variables that are not for users and are documented nowhere else.
pub(super) const INTERNAL: &[&str] = &[
    // Shows what the zygote writes to its standard error.
    "BELLJAR_DEBUG_ZYGOTE",
    // For the security tests: code in a sandbox must never see it.
    "BELLJAR_TEST_SECRET",
    // The binary that the Python package starts.
    "BELLJAR_BINARY",
];

/// Kubernetes adds these to every pod if there is a service called `belljar`; they are not typing errors.
pub(super) fn is_kubernetes(name: &str) -> bool {
    name == "BELLJAR_PORT"
        || name.starts_with("BELLJAR_PORT_")
        || name.starts_with("BELLJAR_SERVICE_")
}

const A_SIZE: &str = "a size such as 512M or 2G";
const YES_OR_NO: &str = "1 or 0";

pub const GROUPS: &[Group] = &[
    Group {
        title: "Places",
        variables: &[
            variable(
                "BELLJAR_HOME",
                "a directory",
                "",
                "Directory of environments and images, and of everything else that has no setting of its own.",
            )
            .when_empty("/var/lib/belljar for root, ~/.local/share/belljar for others"),
            variable(
                "BELLJAR_STATE_DIR",
                "a directory",
                "",
                "Directory of the server's database (sessions, keys, usage), of the audit log, and of\n\
                 the log of refused requests (refusals.log). Back it up.",
            )
            .when_empty("`state` below BELLJAR_HOME"),
            variable(
                "BELLJAR_DATABASE_URL",
                "a URL such as postgres://USER:PASSWORD@HOST:5432/DATABASE?sslmode=verify-full",
                "",
                "A Postgres database for the records of the server (sessions, keys, usage, artifacts)\n\
                 instead of files in BELLJAR_STATE_DIR. `belljar migrate` moves existing records.\n\
                 sslmode: disable, prefer, require (encrypted, certificate not checked) or\n\
                 verify-full; sslrootcert names a file of certificates.",
            )
            .when_empty("SQLite files in BELLJAR_STATE_DIR")
            .secret(),
            variable(
                "SESSIONS_ROOT",
                "a directory",
                "",
                "Directory of the files of sessions with storage BIND, with one directory for each.",
            )
            .when_empty("`sessions` below BELLJAR_HOME"),
            variable(
                "BELLJAR_SESSION_SIZE",
                "a size such as 512M or 2G, at least 4M",
                "4G",
                "The size limit of a session's files with storage BIND. Existing sessions keep their\n\
                 limit.",
            ),
            variable(
                "BELLJAR_SESSION_FILES",
                "auto, image or directory",
                "auto",
                "How the files of new sessions with storage BIND are stored. `image`: in `files.ext4`,\n\
                 a file system of its own, which uses only the space of its content and whose size\n\
                 the kernel enforces; needs root, loop devices and mke2fs. `directory`: in `files`,\n\
                 which programs on the host can read, and whose size is checked but not enforced.\n\
                 `auto`: `image` where that is possible.",
            ),
            variable(
                "BELLJAR_SESSION_RETENTION",
                "seconds, 0 to 315360000",
                "0",
                "How long an ended session with storage BIND is kept, with its files. 0: for ever.",
            ),
            variable(
                "BELLJAR_OUTPUTS_DIR",
                "a directory",
                "outputs",
                "Directory of the artifacts of runs, with one directory for each; relative to the\n\
                 current directory. Tenants other than `default` have a directory of their own in it.",
            ),
            variable(
                "BLOBSTORE_DIR",
                "a directory",
                "",
                "Directory of the content of artifacts. Identical files of a tenant are stored once. With\n\
                 BELLJAR_BLOBS_URL, directory of copies of some of it.",
            )
            .when_empty("`blobstore` below BELLJAR_HOME"),
            variable(
                "BELLJAR_BLOBS_URL",
                "s3://bucket/prefix",
                "",
                "Stores the content of artifacts and copies of snapshots in S3, below this prefix, which\n\
                 belongs to one catalog of artifacts. The bucket must exist.",
            )
            .when_empty("BLOBSTORE_DIR and BELLJAR_SNAPSHOT_DIR"),
            variable(
                "AWS_ENDPOINT_URL",
                "a URL such as https://s3.example.com",
                "",
                "The S3 server of BELLJAR_BLOBS_URL.",
            )
            .when_empty("that of AWS"),
            variable("AWS_REGION", "a name", "us-east-1", "The region of the bucket."),
            variable(
                "AWS_ACCESS_KEY_ID",
                "text",
                "",
                "The id of the key for BELLJAR_BLOBS_URL.",
            )
            .when_empty("the identity of the machine or the pod"),
            variable(
                "AWS_SECRET_ACCESS_KEY",
                "text",
                "",
                "The key that belongs to AWS_ACCESS_KEY_ID.",
            )
            .when_empty("none")
            .secret(),
            variable(
                "ARTIFACTS_DB",
                "a file",
                "",
                "The database of artifacts: their names, sizes, types and origins. Only one server at\n\
                 a time can use it.",
            )
            .when_empty("`artifacts.db` below BELLJAR_STATE_DIR"),
            variable(
                "BELLJAR_EXPORTS_DIR",
                "a directory",
                "exports",
                "Directory for datasets that are exported from sessions; relative to the current\n\
                 directory. Tenants other than `default` have a directory of their own in it.",
            ),
            variable(
                "BELLJAR_RUN_DIR",
                "a directory",
                "",
                "Directory of sockets and locks of live sandboxes.",
            )
            .when_empty("/run/belljar for root, $XDG_RUNTIME_DIR/belljar for others"),
        ],
    },
    Group {
        title: "Sandboxes",
        variables: &[
            variable(
                "BELLJAR_MEMORY",
                "a size such as 512M or 2G, at least 16M",
                "512M",
                "Memory of a sandbox, including files in RAM.",
            ),
            variable("BELLJAR_CPUS", "0.01 to 1024", "1", "Processors of a sandbox."),
            variable(
                "BELLJAR_PIDS",
                "a number from 4 to 100000",
                "256",
                "Processes and threads of a sandbox.",
            ),
            variable(
                "TMPFS_SIZE_MB",
                "a number from 1 to 16777216",
                "",
                "Megabytes of files that a sandbox may keep in RAM.\n\
                 They count as memory and may be at most three quarters of it. A size set here raises\n\
                 BELLJAR_MEMORY as needed; if BELLJAR_MEMORY is set too and is too small, it is an\n\
                 error.",
            )
            .when_empty("1024, or three quarters of the memory if that is less"),
            variable(
                "BELLJAR_BACKEND",
                "auto, native or docker",
                "auto",
                "What makes sandboxes. `native`: namespaces of this kernel. `docker`: a Docker or Podman\n\
                 engine. `auto`: native if it can enforce limits; if not, docker if an engine with the\n\
                 image answers.",
            ),
            variable(
                "SANDBOX_IMAGE",
                "the name of an image",
                "",
                "The image of sandboxes. `host` is this machine's own /usr with the environment that\n\
                 `belljar setup` made; `sandbox:latest` means the same, unless there is such an image or\n\
                 docker is used. Other images come from `belljar image build`, `pull` or `import`. With\n\
                 docker, any image of the engine can be used.",
            )
            .when_empty("host, or belljar/sandbox:latest with docker"),
            variable(
                "SANDBOX_IMAGE_NAME",
                "the name of an image",
                "",
                "Another name of SANDBOX_IMAGE. If both are set, SANDBOX_IMAGE is used.",
            )
            .when_empty("SANDBOX_IMAGE"),
            variable(
                "BELLJAR_IMAGES",
                "names of images, with * for any part of one",
                "",
                "Images that sessions may request besides the default.",
            )
            .when_empty("only the default"),
            variable(
                "BELLJAR_IMAGE_LIMIT",
                "a size such as 512M or 2G, at least 1M",
                "32G",
                "The largest size of an unpacked image.",
            ),
            variable(
                "DOCKER_HOST",
                "an address such as unix:///var/run/docker.sock or tcp://localhost:2375",
                "",
                "The address of the container engine.",
            )
            .when_empty("unix:///var/run/docker.sock"),
            variable(
                "BELLJAR_DOCKER_RUNTIME",
                "the name of a runtime of the engine",
                "",
                "The runtime with which the container engine runs sandboxes: `runsc` for gVisor.",
            )
            .when_empty("the engine's default"),
            variable(
                "BELLJAR_SOCKET_DIR",
                "a directory",
                "",
                "Directory of the sockets to containers. Only the server's user may have access (mode\n\
                 0700), and it must be on a Linux file system: Windows file systems have no sockets.",
            )
            .when_empty("doors in BELLJAR_RUN_DIR"),
            variable(
                "BELLJAR_GPUS",
                "all, a number, or device=0,1",
                "",
                "GPUs for sandboxes, if the container engine has any.",
            )
            .when_empty("none"),
            variable(
                "BELLJAR_REGISTRY_USER",
                "a name",
                "",
                "The user name of `belljar image pull` at a registry.",
            )
            .when_empty("the login of `docker login`"),
            variable(
                "BELLJAR_REGISTRY_PASSWORD",
                "a password or token",
                "",
                "The password of BELLJAR_REGISTRY_USER.",
            )
            .when_empty("none")
            .secret(),
            variable(
                "BELLJAR_CGROUP_PARENT",
                "a name",
                "belljar",
                "Name of the parent control group of sandboxes. In a container it is below the container's own group, \
                 else root has it at the root. `/NAME`: at the root. `./NAME`: below the server's own group.",
            ),
            variable(
                "BELLJAR_STRICT",
                YES_OR_NO,
                "0",
                "1: refuse to run code if a limit cannot be enforced. 0: warn.",
            ),
        ],
    },
    Group {
        title: "Python of the sandboxes",
        variables: &[
            variable(
                "BELLJAR_PYTHON",
                "a program",
                "python3",
                "The interpreter that `belljar setup` builds the sandboxes' environment on.",
            ),
            variable(
                "BELLJAR_PACKAGES",
                "names separated by spaces",
                "numpy pandas pyarrow matplotlib scikit-learn scipy pillow openpyxl ipython",
                "Packages that `belljar setup` installs for sandboxes.",
            ),
            variable(
                "BELLJAR_PRELOAD",
                "names separated by spaces",
                "numpy pandas pyarrow pyarrow.parquet matplotlib matplotlib.pyplot sklearn scipy \
                 PIL openpyxl IPython",
                "Modules that are loaded before a kernel starts. Importing them takes no time then,\n\
                 but the zygote needs more memory.",
            ),
        ],
    },
    Group {
        title: "Sessions",
        variables: &[
            variable(
                "SESSION_STORAGE",
                "TMPFS or BIND",
                "TMPFS",
                "The default storage of a session's files. TMPFS: in RAM, removed with the session.\n\
                 BIND: on disk, below SESSIONS_ROOT.",
            ),
            variable(
                "DATASET_ACCESS",
                "NONE, LOCAL_RO or API",
                "NONE",
                "The default access of sessions to datasets. LOCAL_RO: DATASETS_HOST_RO is mounted at\n\
                 /data, read-only. API: datasets are staged on demand into /session/data; API_TMPFS\n\
                 means the same.",
            ),
            variable(
                "DATASETS_HOST_RO",
                "a directory",
                "",
                "The directory of datasets for LOCAL_RO.",
            )
            .when_empty("none"),
            variable(
                "BELLJAR_DATASET_SIZE",
                "a size such as 512M or 2G, at least 1",
                "8G",
                "The largest dataset that can be staged.",
            ),
            variable(
                "BELLJAR_DATASET_CACHE",
                "a directory",
                "",
                "Directory of staged datasets, kept for later sessions of the tenant.",
            )
            .when_empty("`datasets` below BELLJAR_HOME"),
            variable(
                "BELLJAR_DATASET_CACHE_SIZE",
                A_SIZE,
                "16G",
                "The size of that directory; the least recently used datasets are removed first.",
            ),
            variable(
                "BELLJAR_DATASET_SOURCES",
                "a JSON object, or @ and the path of a file with one",
                "",
                "Sources from which the server fetches datasets.\n\
                 Each key is the name of a dataset, or a prefix of names, which ends in `/` or `*`;\n\
                 the longest match is used.\n\
                 Each value is a URL, or an object with these keys:\n\
                 `url`: http or https. `{name}` is replaced by what follows the prefix, `{path}` by\n\
                 the same with its slashes, `{id}` by the whole name; a prefix needs one of them, in\n\
                 the path or query.\n\
                 `headers`: sent only to the host of `url`. `${NAME}` in a value is the variable of\n\
                 that name in the server's environment or `.env`.\n\
                 `allow`: hosts, with or without a port, that may have a private, loopback or\n\
                 link-local address. Other hosts are refused if one of their addresses is not\n\
                 public; the same holds for redirects.\n\
                 `timeout_s`: seconds for a whole dataset, 1 to 86400; 300 by default.\n\
                 `max_bytes`: the largest dataset, such as \"512M\"; \"2G\" by default.\n\
                 Example: {\"sales/\": {\"url\": \"https://data.example.com/{name}.parquet\",\n\
                 \"headers\": {\"Authorization\": \"Bearer ${SALES_TOKEN}\"}},\n\
                 \"plain/\": \"https://files.example.com/{path}\"}",
            )
            .when_empty("none")
            .secret(),
            variable(
                "BELLJAR_WORKSPACES",
                "absolute paths of directories, separated by colons",
                "",
                "Directories of this machine that sessions may mount at /workspace to read and write, with\n\
                 all directories below them. New files there belong to the owner of the directory. System\n\
                 directories, home directories themselves and the server's own are refused. Needs the\n\
                 native backend and the image `host`. Local servers that the Python package starts allow\n\
                 all directories that their user can access.",
            )
            .when_empty("none"),
            variable(
                "BELLJAR_TTL",
                "seconds, 1 to 315360000",
                "3600",
                "How long a session lives after its last use, by default.",
            ),
            variable(
                "BELLJAR_MAX_TTL",
                "seconds, 1 to 315360000",
                "2592000",
                "The longest TTL that a session can request.",
            ),
            variable(
                "BELLJAR_IDLE_TIMEOUT",
                "seconds, 0 to 315360000",
                "",
                "A session that is not used for this long ends, even before its TTL. 0: never.",
            )
            .when_empty("never"),
            variable(
                "IDLE_HIBERNATE_SEC",
                "seconds, 0 to 315360000",
                "900",
                "After this time without use, large values of a session's Python kernel are written to\n\
                 disk, below /session/data. They are loaded before code runs again. Only if that is on\n\
                 a disk (storage BIND, a workspace): otherwise files use memory too. 0: never.",
            ),
            variable(
                "BELLJAR_SPILL_DF_BYTES",
                A_SIZE,
                "1M",
                "The smallest DataFrame, Series or Arrow table that is written to disk.",
            ),
            variable(
                "BELLJAR_SPILL_NP_BYTES",
                A_SIZE,
                "1M",
                "The smallest array that is written to disk.",
            ),
            variable(
                "BELLJAR_HIBERNATE_SEC",
                "seconds, 0 to 315360000",
                "1800",
                "After this time without use, a session hibernates: it is stored in files and uses no\n\
                 memory and no processor until its next use. 0: only on request.",
            ),
            variable(
                "BELLJAR_SNAPSHOT_DIR",
                "a directory",
                "",
                "Directory of hibernated sessions and checkpoints.",
            )
            .when_empty("frozen in BELLJAR_STATE_DIR"),
            variable(
                "BELLJAR_SNAPSHOT_SIZE",
                A_SIZE,
                "32G",
                "The size of that directory. When it is full, no session is hibernated or forked.",
            ),
            variable(
                "BELLJAR_TENANT_SNAPSHOT_SIZE",
                A_SIZE,
                "8G",
                "The share of one tenant, in blocks on the disk. 0: no limit of its own.",
            ),
            variable(
                "BELLJAR_TENANT_SLEEPING",
                "a number",
                "100",
                "Hibernated sessions of a tenant whose key has no limit of its own. 0: no limit.",
            ),
            variable(
                "BELLJAR_ALONE",
                "seconds, 0 to 315360000",
                "86400",
                "How long sandboxes wait for a new server after theirs has ended.",
            ),
            variable(
                "BELLJAR_POOL",
                "a number from 0 to 1000",
                "4",
                "Warm sandboxes that the server keeps ready for new sessions.",
            ),
        ],
    },
    Group {
        title: "Network of the sandboxes",
        variables: &[
            variable(
                "BELLJAR_NETWORK",
                "none, open, or hosts separated by spaces",
                "none",
                "Hosts that code in a sandbox may connect to, by default; also for `belljar run`. A\n\
                 host is a name, `*.` and a name, or an address, with or without a port:\n\
                 example.org *.example.com:443 10.0.0.5:8080. Without a port, 80 and 443 are allowed.\n\
                 `open`: every public address. Private, loopback and link-local addresses are allowed\n\
                 only if they are listed as addresses.",
            ),
            variable(
                "BELLJAR_MAX_NETWORK",
                "none, open, or hosts separated by spaces",
                "",
                "The most that a session can request. Private addresses can be added to `open`:\n\
                 open 10.0.0.5:8080.",
            )
            .when_empty("the value of BELLJAR_NETWORK"),
            variable(
                "BELLJAR_NETWORK_BYTES",
                A_SIZE,
                "16G",
                "Bytes that one sandbox may send and receive, together. 0: no limit.",
            ),
            variable(
                "BELLJAR_DNS",
                "addresses separated by spaces, with or without a port",
                "",
                "DNS servers with which the server resolves host names for sandboxes and for sources of\n\
                 datasets. Names in /etc/hosts come first. Example: 10.0.0.2 [fd00::2]:5353",
            )
            .when_empty("those of /etc/resolv.conf"),
            variable(
                "BELLJAR_NETWORK_SECRETS",
                "a JSON object, or @ and the path of a file with one",
                "",
                "Headers that the proxy can add to requests of sandboxes. Sandboxes never see them.\n\
                 Each key is the name that a session uses in `network.inject`; each value is an object\n\
                 with these keys:\n\
                 `value`: the value of the header. `${NAME}` in it is the variable of that name in the\n\
                 server's environment or `.env`.\n\
                 `hosts`: the only hosts that it is sent to, such as https://api.example.com.\n\
                 Example: {\"MODEL\": {\"value\": \"Bearer ${MODEL_KEY}\",\n\
                 \"hosts\": [\"https://api.example.com\"]}}",
            )
            .when_empty("none")
            .secret(),
        ],
    },
    Group {
        title: "Browser",
        variables: &[
            variable(
                "BELLJAR_BROWSER_IDLE",
                "a number of seconds",
                "90",
                "How long a session's browser may be unused before it is stopped. Its cookies and the\n\
                 URLs of its tabs are kept, and the next action restores them.",
            ),
            variable(
                "BELLJAR_BROWSER_MODEL",
                "the name of a model",
                "",
                "The default model for browser tasks.",
            )
            .when_empty("the request must name one"),
            variable(
                "BELLJAR_BROWSER_MODEL_URL",
                "a URL such as https://api.example.com/v1",
                "",
                "The URL of its API, in OpenAI's protocol. The session's network policy must allow it;\n\
                 BELLJAR_NETWORK_SECRETS can add the key to its requests.",
            )
            .when_empty("the request must name one"),
            variable(
                "OPENAI_API_KEY",
                "an API key",
                "",
                "On a local server (no API keys, loopback or a UNIX socket) this key is enough for browser\n\
                 tasks. Their model is gpt-5-mini unless BELLJAR_BROWSER_MODEL is set. Sessions may connect\n\
                 to the model's host, and the proxy adds the key, which never enters a sandbox.",
            )
            .when_empty("none; BELLJAR_NETWORK_SECRETS can add keys")
            .secret(),
            variable(
                "OPENAI_BASE_URL",
                "a URL such as https://api.example.com/v1",
                "",
                "The API that OPENAI_API_KEY is for.",
            )
            .when_empty("OpenAI itself"),
        ],
    },
    Group {
        title: "Artifacts",
        variables: &[
            variable(
                "BELLJAR_KEEP_ARTIFACTS",
                YES_OR_NO,
                "0",
                "1: files stay in /session/artifacts after they became artifacts. 0: they are moved.",
            ),
            variable(
                "BELLJAR_ARTIFACT_SIZE",
                A_SIZE,
                "1G",
                "The largest artifact. 0: no limit.",
            ),
            variable(
                "BELLJAR_SESSION_ARTIFACTS",
                "a number",
                "100000",
                "Artifacts that one session may have. 0: no limit.",
            ),
            variable(
                "BELLJAR_SESSION_ARTIFACT_BYTES",
                A_SIZE,
                "4G",
                "The total size of the artifacts of one session. 0: no limit.",
            ),
            variable(
                "BELLJAR_TENANT_ARTIFACTS",
                "a number",
                "1000000",
                "Artifacts that one tenant may have. 0: no limit.",
            ),
            variable(
                "BELLJAR_TENANT_ARTIFACT_BYTES",
                A_SIZE,
                "64G",
                "The total size of the artifacts of one tenant. 0: no limit.",
            ),
            variable(
                "BELLJAR_ARTIFACT_RETENTION",
                "seconds, 0 to 315360000",
                "2592000",
                "How long an artifact is kept. 0: for ever.",
            ),
            variable(
                "BELLJAR_LINK_TTL",
                "seconds, 1 to 315360000",
                "600",
                "How long a link to an artifact is valid.",
            ),
            variable(
                "BELLJAR_PUBLIC_URL",
                "an address such as https://sandbox.example.com",
                "",
                "The base URL of links to artifacts, if clients reach the server at another address\n\
                 than the one it listens on. In a cluster it is a setting of the gateways.",
            )
            .when_empty("the address that the server listens on"),
        ],
    },
    Group {
        title: "Volumes",
        variables: &[
            variable(
                "BELLJAR_VOLUMES_DIR",
                "a directory",
                "",
                "Directory of volumes.",
            )
            .when_empty("`volumes` below BELLJAR_HOME"),
            variable(
                "BELLJAR_VOLUME_STORAGE",
                "auto, image or directory",
                "auto",
                "How new volumes are stored. `image`: each in a file system of its own, whose size the\n\
                 kernel enforces and whose space is reserved; needs root, loop devices and mke2fs.\n\
                 `directory`: as plain files, whose size is checked but not enforced. `auto`: `image`\n\
                 where that is possible.",
            ),
            variable(
                "BELLJAR_VOLUME_SIZE",
                "a size such as 512M or 2G, at least 4M",
                "1G",
                "The default size of a volume.",
            ),
            variable(
                "BELLJAR_TENANT_VOLUMES",
                "a number; 0: no limit",
                "32",
                "Volumes of a tenant.",
            ),
            variable(
                "BELLJAR_TENANT_VOLUME_BYTES",
                "a size such as 512M or 2G; 0: no limit",
                "32G",
                "The total size of the volumes of a tenant.",
            ),
        ],
    },
    Group {
        title: "Total limits",
        variables: &[
            variable(
                "BELLJAR_MAX_SESSIONS",
                "a number",
                "1000",
                "Sessions and runs that are alive at the same time. 0: no limit.",
            ),
            variable(
                "BELLJAR_MAX_MEMORY",
                A_SIZE,
                "",
                "The largest sum of the memory limits of all sandboxes. 0: no limit.",
            )
            .when_empty("no limit"),
            variable(
                "BELLJAR_MAX_PIDS",
                "a number",
                "",
                "The largest sum of the process limits of all sandboxes. 0: no limit.",
            )
            .when_empty("no limit"),
        ],
    },
    Group {
        title: "The server",
        variables: &[
            variable(
                "BELLJAR_LISTEN",
                "an IP address and a port, such as 127.0.0.1:8000 or [::]:8000",
                "127.0.0.1:8000",
                "The address that the server listens on. Create keys with `belljar key create` before\n\
                 it is anything but loopback.",
            ),
            variable(
                "BELLJAR_UNIX",
                "the path of a socket",
                "",
                "A UNIX socket to listen on instead.",
            )
            .when_empty("none"),
            variable(
                "BELLJAR_TLS_CERT",
                "a file",
                "",
                "The server's certificate with its chain, in PEM; needs BELLJAR_TLS_KEY too.",
            )
            .when_empty("no TLS"),
            variable("BELLJAR_TLS_KEY", "a file", "", "The certificate's private key, in PEM.")
                .when_empty("no TLS"),
            variable(
                "BELLJAR_ALLOWED_HOSTS",
                "host names without ports, separated by spaces",
                "",
                "Host names that clients may use for the server (Host header), besides those of loopback\n\
                 and the address it listens on.",
            )
            .when_empty("no others"),
            variable(
                "BELLJAR_ALLOWED_ORIGINS",
                "origins such as https://app.example.com, separated by spaces",
                "",
                "Web pages that may call the server from a browser and read its responses (CORS).",
            )
            .when_empty("none"),
            variable(
                "BELLJAR_MAX_BODY",
                "a size such as 512M or 2G, at least 1K",
                "64M",
                "The largest request body.",
            ),
            variable(
                "BELLJAR_THREADS",
                "auto or a number from 1 to 1024",
                "auto",
                "Worker threads of the server.",
            ),
            variable(
                "BELLJAR_STALL",
                "seconds, 1 to 3600",
                "60",
                "How long a client may send less than 1 KiB per second of a body, or read nothing of its\n\
                 response, before its connection is closed.",
            ),
            variable(
                "BELLJAR_DRAIN",
                "seconds, 0 to 3600",
                "10",
                "How long a stopping server waits for requests in progress.",
            ),
        ],
    },
    Group {
        title: "Many machines",
        variables: &[
            variable(
                "BELLJAR_NODE_ID",
                "lower-case letters, digits and hyphens, at most 63",
                "",
                "The name of this node. Each node of a cluster has another one, and keeps it.",
            )
            .when_empty("random, and kept in BELLJAR_STATE_DIR"),
            variable(
                "BELLJAR_NODE_LISTEN",
                "an IP address and a port",
                "0.0.0.0:8444",
                "The address that a node listens on for gateways. Only they can connect: they need a\n\
                 certificate of BELLJAR_CLUSTER_CA.",
            ),
            variable(
                "BELLJAR_NODE_ADDRESS",
                "a host and a port",
                "",
                "The address at which gateways reach this node.",
            )
            .when_empty("the address it listens on, or that of this machine"),
            variable(
                "BELLJAR_CLUSTER_CA",
                "a file",
                "",
                "The certificate of the authority of the cluster, in PEM, the same for all nodes and\n\
                 gateways. `belljar cluster ca` makes one.",
            )
            .when_empty("none; nodes and gateways need one"),
            variable(
                "BELLJAR_CLUSTER_CA_KEY",
                "a file",
                "",
                "The key of the authority, in PEM. Each node and gateway makes its own certificate with\n\
                 it.",
            )
            .when_empty("none; nodes and gateways need one"),
            variable(
                "BELLJAR_LEASE_S",
                "seconds, 3 to 3600",
                "30",
                "How long a node owns its sessions without renewing its lease in the database. After\n\
                 four fifths of that time its sandboxes are frozen, and 5 seconds after its end other\n\
                 nodes take the sessions over.",
            ),
            variable(
                "BELLJAR_NODE_DRAIN_S",
                "seconds, 0 to 86400",
                "570",
                "How long a stopping node takes to hibernate its sessions, so that other nodes can wake\n\
                 them.",
            ),
            variable(
                "BELLJAR_SNAPSHOT_EVERY_S",
                "seconds, 0 to 315360000",
                "0",
                "How often a node copies its awake sessions to BELLJAR_BLOBS_URL. If the node is lost,\n\
                 they go on from there. 0: never; then only sleeping sessions and those with\n\
                 checkpoints go on.",
            ),
            variable(
                "BELLJAR_POD_SELECTOR",
                "labels",
                "",
                "In Kubernetes: the labels of the pods of nodes, such as `app=belljar-node`. A gateway\n\
                 watches them in its own namespace and takes the sessions of a node over when all\n\
                 containers of its pod have ended. The id of a node must be the UID of its pod, and the\n\
                 gateway's account must be allowed to list and watch pods.",
            )
            .when_empty("gateways wait for the end of leases"),
            variable(
                "BELLJAR_HEALTH_LISTEN",
                "an IP address and a port",
                "",
                "An address of a node or gateway for health checks and metrics only, without TLS and\n\
                 without keys. Only monitoring should reach it.",
            )
            .when_empty("none"),
        ],
    },
    Group {
        title: "Logs",
        variables: &[
            variable(
                "BELLJAR_LOG",
                "error, warn, info, debug or trace, or one of them per module, such as \
                 warn,belljar_engine=debug",
                "",
                "What to log to standard error. The input of users and the output of code is never logged.",
            )
            .when_empty("info for the server, warn for other commands"),
            variable("BELLJAR_LOG_FORMAT", "text or json", "text", "The format of the log."),
            variable(
                "BELLJAR_AUDIT_CODE",
                YES_OR_NO,
                "0",
                "1: the audit log contains the code itself, up to 64 KiB each. 0: only its hash.",
            ),
        ],
    },
    Group {
        title: "Clients",
        variables: &[
            variable(
                "BELLJAR_URL",
                "an address such as http://127.0.0.1:8000 or unix:/path/of/a/socket, or local",
                "",
                "The URL of the server. `local`: the server that Python programs of this user start\n\
                 and share.",
            )
            .when_empty("the local server of Python programs if it runs, else http://127.0.0.1:8000"),
            variable(
                "BELLJAR_API_KEY",
                "a key as `belljar key create` shows it",
                "",
                "The API key to use.",
            )
            .when_empty("none")
            .secret(),
        ],
    },
    Group {
        title: "Benchmarks",
        variables: &[variable(
            "BELLJAR_BENCH_IMAGE",
            "the name of a docker image",
            "",
            "An image with the same packages, with which `belljar bench` compares.",
        )
        .when_empty("no comparison with docker")],
    },
];
