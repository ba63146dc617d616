if __name__ != "emmy.dialects":
    raise ImportError("import emmy.dialects, not dialects: a second import would register every op twice")
