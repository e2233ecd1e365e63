"""OpenAI's HTTP contract: request schemas, response objects, and errors in OpenAI's shape."""
